"""The NumPy opinion against the rules written out in plain Python, on every short row of the values that matter."""

from __future__ import annotations

import math
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.oracle import oracle_tokens, tied_set
from refimpl.vocab.d2t import frequency_table, offsets, rising_table, targets

NAN, INF = math.nan, math.inf
PALETTE = (NAN, -INF, -1.0, -0.0, 0.0, 5e-324, 1.0, INF)


def tied_columns(row: tuple[float, ...]) -> list[int]:
    nans = [column for column, value in enumerate(row) if math.isnan(value)]
    return nans or [column for column, value in enumerate(row) if value == max(row)]


def rule(row: tuple[float, ...], ids: tuple[int, ...] | None) -> int:
    if ids is None:
        return min(tied_columns(row))
    return 0 if all(value == -INF for value in row) else min(ids[column] for column in tied_columns(row))


def scatter_then_argmax(row: tuple[float, ...], ids: tuple[int, ...]) -> int:
    scattered = np.full(max(ids) + 1, -INF)
    scattered[list(ids)] = row
    return int(np.argmax(scattered))


ROWS = [row for width in (1, 2, 3, 4) for row in product(PALETTE, repeat=width)]


def test_tied_set_of_every_short_row() -> None:
    for row in ROWS:
        assert np.flatnonzero(tied_set(np.array(row))).tolist() == tied_columns(row)


def test_tied_set_takes_rows_together() -> None:
    rows = np.array(list(product(PALETTE, repeat=3)))
    assert np.array_equal(tied_set(rows), [tied_set(row) for row in rows])


def test_every_short_row_without_a_table() -> None:
    for width in (1, 2, 3, 4):
        rows = list(product(PALETTE, repeat=width))
        assert oracle_tokens(np.array(rows)).tolist() == [rule(row, None) for row in rows]


@pytest.mark.parametrize("width", [1, 2, 3])
def test_every_short_row_with_every_small_table(width: int) -> None:
    rows = list(product(PALETTE, repeat=width))
    for ids in permutations(range(5), width):
        tokens = oracle_tokens(np.array(rows), offsets(np.array(ids))).tolist()
        assert tokens == [rule(row, ids) for row in rows]
        assert tokens == [scatter_then_argmax(row, ids) for row in rows]


@pytest.mark.parametrize(
    ("row", "ids", "token"),
    [
        ((1.0, 2.0, 2.0), (0, 2, 1), 1),  # the tie that tells the two rules apart
        ((2.0, 2.0, 2.0), (0, 2, 1), 0),  # and one that does not
        ((NAN, 1.0, NAN), (7, 3, 5), 5),
        ((-INF, -INF), (3, 4), 0),
        ((-INF, NAN), (3, 4), 4),
        ((-0.0, 0.0), (9, 2), 2),
        ((INF, INF), (2**31 - 1, 2**31 - 2), 2**31 - 2),
    ],
)
def test_known_rows(row: tuple[float, ...], ids: tuple[int, ...], token: int) -> None:
    assert oracle_tokens(np.array([row]), offsets(np.array(ids))).tolist() == [token]


@pytest.mark.parametrize("d2t", [None, np.array([0, 5])])
def test_result_is_int64_also_of_an_empty_batch(d2t: np.ndarray | None) -> None:
    for batch in (0, 2):
        tokens = oracle_tokens(np.zeros((batch, 2)), d2t)
        assert tokens.dtype == np.int64
        assert tokens.shape == (batch,)


@given(st.integers(1, 30), st.integers(0, 2**32))
def test_rising_tables_map_the_lowest_draft_id(vocab_size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.choice(np.array(PALETTE), (20, vocab_size))
    rows = rows[~np.isneginf(rows).all(axis=1)]
    d2t = rising_table(vocab_size, 2 * vocab_size, rng)
    assert np.array_equal(oracle_tokens(rows, d2t), targets(d2t)[oracle_tokens(rows)])


def test_real_width_with_a_frequency_ordered_table() -> None:
    rng = np.random.default_rng(1)
    vocab_size = 151936
    d2t = frequency_table(vocab_size, vocab_size, rng)
    rows = rng.standard_normal((32, vocab_size)).round(1)  # a few ties for the maximum in most rows
    rows[5, [70, 90000]] = NAN
    rows[6] = -INF
    expected = [scatter_then_argmax(tuple(row), tuple(targets(d2t))) for row in rows[4:8]]
    assert oracle_tokens(rows, d2t)[4:8].tolist() == expected
