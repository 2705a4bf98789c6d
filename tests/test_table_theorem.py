"""The statement about D2T tables that verdicts rest on, tested in both directions.

For an injective table and rows that are not all -inf: mapping the lowest draft id of the tied set gives what scattering
into the target vocabulary and taking the argmax gives, on every row, exactly when the targets strictly increase. Where
they do not, the answers differ exactly on the rows whose tied set has its lowest target id elsewhere than at its lowest
draft id.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.oracle import oracle_tokens
from refimpl.vocab.d2t import check_table, frequency_table, offsets, rising_table, targets
from refimpl.vocab.tie_rate import TieRate, from_rows, from_tokens


def tie_patterns(draft_vocab_size: int) -> np.ndarray:
    """One row for every non-empty tied set: 1 inside it, 0 outside. float64 (2**draft - 1, draft)."""
    sets = np.arange(1, 2**draft_vocab_size)
    return ((sets[:, None] >> np.arange(draft_vocab_size)) & 1).astype(np.float64)


def scatter_then_argmax(rows: np.ndarray, target_ids: np.ndarray, target_vocab_size: int) -> np.ndarray:
    """What the full gather does with a table, for many tables at once: target_ids (tables, draft)."""
    filled = np.full((len(target_ids), len(rows), target_vocab_size), -np.inf)
    table, row = np.indices((len(target_ids), len(rows)))
    for draft_id in range(rows.shape[1]):
        filled[table, row, target_ids[:, draft_id][:, None]] = rows[:, draft_id]
    return filled.argmax(axis=2)


@pytest.mark.parametrize("draft", range(1, 6))
@pytest.mark.parametrize("target", range(1, 8))
def test_every_small_table_and_tie_pattern(draft: int, target: int) -> None:
    if draft > target:
        assert not list(permutations(range(target), draft))
        return
    tables = np.array(list(permutations(range(target), draft)))
    rows = tie_patterns(draft)
    tied = rows == 1
    expected = scatter_then_argmax(rows, tables, target)
    mapped = tables[:, rows.argmax(axis=1)]
    differs = expected != mapped
    # Exactly the rows named: lowest target id of the tied set at another member than its lowest draft id.
    lowest_target_at = np.where(tied[None], tables[:, None, :], target).argmin(axis=2)
    assert np.array_equal(differs, lowest_target_at != rows.argmax(axis=1)[None])
    # Both directions of "exactly when": no row differs for a strict rise, some row differs for anything else.
    rises = (np.diff(tables, axis=1) > 0).all(axis=1)
    assert np.array_equal(rises, ~differs.any(axis=1))
    # Every two-way tie of an inverted pair is such a row.
    pairs = np.flatnonzero(tied.sum(axis=1) == 2)
    for row in pairs:
        i, j = np.flatnonzero(tied[row])
        assert np.array_equal(differs[:, row], tables[:, i] > tables[:, j])
    # Code that verdicts use says the same, table by table: on all of the small ones, on some of the many.
    for table, differing in list(zip(tables, differs, strict=True))[:: max(1, len(tables) // 120)]:
        report = check_table(offsets(table), draft, target)
        assert report.is_rising == (not differing.any())
        assert report.errors == ()
        assert from_rows(rows, table) == TieRate(len(rows), int(differing.sum()), int((tied.sum(axis=1) > 1).sum()))
        assert np.array_equal(oracle_tokens(rows, offsets(table)), scatter_then_argmax(rows, table[None], target)[0])
        if report.lowest_inverted_pair is not None:
            witness = np.zeros((1, draft))
            witness[0, list(report.lowest_inverted_pair)] = 1.0
            assert from_rows(witness, table).differing == 1


@given(st.integers(2, 3000), st.integers(0, 3000), st.integers(0, 2**32), st.booleans())
def test_large_tables(draft: int, more: int, seed: int, rising: bool) -> None:
    rng = np.random.default_rng(seed)
    make = rising_table if rising else frequency_table
    d2t = make(draft, draft + more, rng)
    ids = targets(d2t)
    rows = rng.integers(0, 4, (8, draft)).astype(np.float64)  # many ties
    report = check_table(d2t, draft, draft + more)
    mapped = ids[rows.argmax(axis=1)]
    right = oracle_tokens(rows, d2t)
    assert from_rows(rows, ids).differing == int((mapped != right).sum())
    assert from_tokens(right, rows.argmax(axis=1), ids).differing == int((mapped != right).sum())
    assert report.is_rising == rising
    if rising:
        assert np.array_equal(mapped, right)
    else:
        assert report.lowest_inverted_pair is not None
        i, j = report.lowest_inverted_pair
        witness = np.zeros((1, draft))
        witness[0, [i, j]] = 1.0
        assert oracle_tokens(witness, d2t)[0] == ids[j] != ids[i]


def test_an_all_neg_inf_row_is_a_condition_of_its_own() -> None:
    d2t = offsets(np.array([3, 5]))
    row = np.full((1, 2), -np.inf)
    assert oracle_tokens(row, d2t).tolist() == [0]  # the filler's id, though the table rises
    assert from_rows(row, targets(d2t)) == TieRate(0, 0, 0)


def test_the_interval_brackets_the_share() -> None:
    rate = TieRate(1000, 50, 100)
    low, high = rate.interval
    assert 0.037 < low < 0.05 < high < 0.066  # Wilson's interval of 5 % in 1000, by hand
    assert TieRate(100, 0).interval[0] == 0.0
    assert 0.03 < TieRate(100, 0).interval[1] < 0.04
    assert TieRate(0, 0).interval == (0.0, 1.0)
    assert rate + TieRate(10, 1, 2) == TieRate(1010, 51, 102)
    assert "50 of 1000 rows" in str(rate) and "100 of them tied" in str(rate)
