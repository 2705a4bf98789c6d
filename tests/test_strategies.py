"""The strategies: recipes expand to valid cases, ties are ties where claimed, and draws reach what they promise."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from properties.strategies import padding, recipes, tables, values
from properties.strategies.layouts import STYLES, edge_columns, num_filled, split
from refimpl import bits
from refimpl.case import Call, Case
from refimpl.oracle import oracle_tokens, tied_set
from refimpl.vocab.d2t import check_table, targets

TP_SIZES = (1, 3, 4)
MOST_VALUES = 1 << 20

some = settings(
    max_examples=12,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def drawable(tp_size: int) -> dict[str, st.SearchStrategy[Any]]:
    """Every strategy of a recipe that `expand`s."""
    ties = {f"ties {where}": recipes.tie_rows(tp_size, where) for where, n in recipes.SPREADS.items() if n <= tp_size}
    return ties | {
        "rows": recipes.rows(tp_size),
        "real": recipes.rows(tp_size, ("real",)),
        "rising": recipes.rows(tp_size, table_kinds=tables.RISING),
        "not rising": recipes.rows(tp_size, ("small", "edges"), table_kinds=tables.NOT_RISING, min_vocab=2),
        "palettes": recipes.rows(tp_size, ("small",), forms=values.PALETTES),
        "padded": recipes.padded(tp_size),
        "calls": recipes.calls(tp_size),
        "tables in turn": recipes.tables_in_turn(tp_size),
        "rearranged": recipes.rearranged(tp_size),
        "relabelled": recipes.relabelled(tp_size),
        "resharded": recipes.resharded(tp_size),
        "far targets": recipes.far_targets(tp_size, "beyond int16"),
    }


def each(strategy: st.SearchStrategy[Any], test: Callable[[Any], None]) -> None:
    some(given(strategy)(test))()


def reaches(strategy: st.SearchStrategy[Any], wanted: Callable[[Any], bool], draws: int = 300) -> None:
    """Within so many draws something wanted comes."""
    try:
        find(strategy, wanted, settings=settings(some, max_examples=draws))
    except NoSuchExample:
        pytest.fail("no draw reaches it")


@pytest.mark.parametrize("tp_size", TP_SIZES)
@pytest.mark.parametrize("name", drawable(3))
def test_recipes_expand_to_valid_cases(name: str, tp_size: int) -> None:
    strategies = drawable(tp_size)
    if name not in strategies:
        pytest.skip(f"needs more than {tp_size} ranks")

    def valid(recipe: Any) -> None:
        case: Case = recipe.expand()  # Call and Layout refuse what is not valid
        assert case.tp_size == tp_size
        assert case.digest == recipe.expand().digest, "not a function of the drawn numbers"
        assert sum(call.logits.size for call in case.calls) <= MOST_VALUES
        assert len(repr(recipe)) < 3000
        for call in case.calls:
            if call.d2t is not None:
                ids = targets(call.d2t)
                assert ids.min() >= 0 and len(np.unique(ids)) == call.layout.vocab_size

    each(strategies[name], valid)


@pytest.mark.parametrize("tp_size", TP_SIZES)
@pytest.mark.parametrize("where", recipes.SPREADS)
def test_ties_are_where_they_are_claimed(where: str, tp_size: int) -> None:
    wanted = recipes.SPREADS[where]
    if wanted > tp_size:
        pytest.skip(f"needs more than {tp_size} ranks")

    def ties(recipe: recipes.TieRows) -> None:
        call = recipe.expand().calls[0]
        tied = tied_set(call.values())
        holders = np.stack([tied[:, start:end].any(axis=1) for start, end in call.layout.bounds], axis=1).sum(axis=1)
        assert (holders == (wanted or num_filled(call.layout))).all()
        if where != "all" or num_filled(call.layout) > 1:
            assert (tied.sum(axis=1) >= 2).all()

    each(recipes.tie_rows(tp_size, where), ties)


@pytest.mark.parametrize("dtype", bits.DTYPES)
def test_the_tied_set_of_a_contest_is_the_given_one(dtype: str) -> None:
    rng = np.random.default_rng(7)
    layout = split(40, 3, "uneven", 5)
    tied = rng.integers(0, 40, (4000, 2))
    greatest = values.from_palettes(rng, (*values.PALETTES, "normal"), dtype, len(tied))
    found = tied_set(bits.decode(values.contest_on(rng, layout, dtype, tied, greatest), dtype))
    meant = np.zeros_like(found)
    np.put_along_axis(meant, tied, True, axis=1)
    meant[greatest == bits.neg_inf(dtype)] = True
    np.testing.assert_array_equal(found, meant)


@pytest.mark.parametrize("dtype", bits.DTYPES)
def test_spelling_changes_patterns_and_no_value(dtype: str) -> None:
    rng = np.random.default_rng(3)
    patterns = np.tile(np.concatenate([values.palette(name, dtype) for name in values.PALETTES]), 8)
    spelled = values.spell(rng, patterns, dtype)
    np.testing.assert_array_equal(bits.decode(spelled, dtype), bits.decode(patterns, dtype))
    nans = spelled[bits.is_nan(spelled, dtype)]
    assert len(np.unique(nans)) > 8 and len(np.unique(nans >> (bits.WIDTH[dtype] - 1))) == 2
    assert {0, bits.sign_bit(dtype)} <= set(spelled.tolist())


@pytest.mark.parametrize("dtype", bits.DTYPES)
def test_below_is_the_next_number_down(dtype: str) -> None:
    patterns = np.concatenate([values.palette(name, dtype) for name in values.PALETTES])
    lower = values.below(patterns, 1, dtype)
    assert not bits.is_nan(lower, dtype).any()
    smaller = bits.decode(lower, dtype) < bits.decode(patterns, dtype)
    assert (smaller | bits.is_nan(patterns, dtype) | (patterns == bits.neg_inf(dtype))).all()


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("min_filled", [1, 2, 4])
def test_splits_fill_as_many_shards_as_asked(style: str, min_filled: int) -> None:
    for vocab_size in (4, 5, 13, 64, 300):
        for seed in range(20):
            layout = split(vocab_size, 4, style, seed, extra_padding=seed % 3, min_filled=min_filled)
            assert layout.vocab_size == vocab_size and num_filled(layout) >= min_filled


def test_edge_columns_hold_the_ends_of_shards_and_the_last_id() -> None:
    layout = split(4097, 3, "uneven", 1)
    columns = set(edge_columns(layout).tolist())
    assert {start for start, end in layout.bounds if end > start} <= columns
    assert {end - 1 for start, end in layout.bounds if end > start} <= columns
    assert {256, 257, 2048, 2049, 4096} <= columns


@pytest.mark.parametrize("kind", padding.KINDS)
@pytest.mark.parametrize("dtype", bits.DTYPES)
def test_padding_beats_or_equals_what_it_should(kind: str, dtype: str) -> None:
    logits = bits.encode(np.array([[1.0, 3.0], [2.0, np.nan]]), dtype)
    patterns = np.array(padding.patterns(kind, dtype, logits), bits.STORAGE[dtype])
    numbers = bits.decode(patterns, dtype)
    if kind in ("above", "max", "inf"):
        assert (numbers > 3.0).all()
    if kind == "equal":
        assert set(numbers.tolist()) == {2.0, 3.0}
    assert padding.patterns(kind, dtype, logits[:0]), "an empty batch has padding too"


@pytest.mark.parametrize("kind", [*tables.RISING, *tables.NOT_RISING, *tables.FAR])
@pytest.mark.parametrize("vocab_size", [1, 2, 3, 64, 300])
def test_tables_are_of_their_kind(kind: str, vocab_size: int) -> None:
    for seed in range(8):
        d2t = tables.Table(kind, seed).expand(vocab_size)
        report = check_table(d2t, vocab_size)
        assert not report.errors
        if kind in tables.RISING + tables.FAR:
            assert report.is_rising
        elif kind == "one inversion" and vocab_size > 1:
            assert report.inversions == 1
        elif kind != "shuffled" and vocab_size > 1:
            assert not report.is_rising
    if kind == "beyond float32":
        assert (np.float32(targets(d2t)[-1]) != targets(d2t)[-1]) and targets(d2t)[-1] > 2**24


def test_rows_under_a_falling_table_tie_its_inverted_pairs() -> None:
    def shown(recipe: recipes.Rows) -> None:
        call = recipe.call()
        if call.batch == 0 or call.d2t is None or check_table(call.d2t, len(call.d2t)).is_rising:
            return
        draft = oracle_tokens(call.values())
        assert (draft + call.d2t[draft] != oracle_tokens(call.values(), call.d2t)).any()

    each(recipes.rows(2, ("small",), table_kinds=tables.NOT_RISING, min_vocab=2), shown)


@given(bad=tables.bad_tables())
@some
def test_every_fault_of_a_table_is_named(bad: tables.BadTable) -> None:
    assert any(tables.FAULTS[bad.fault] in error for error in check_table(*bad.expand()).errors)


def test_relabelled_rows_keep_their_tied_sets() -> None:
    def kept(recipe: recipes.Relabelled) -> None:
        first, *others = recipe.expand().calls
        for call in others:
            np.testing.assert_array_equal(tied_set(call.values()), tied_set(first.values()))

    each(recipes.relabelled(3).filter(lambda recipe: recipe.rows.batch > 0), kept)


@pytest.mark.parametrize("how", recipes.ARRANGEMENTS)
def test_rearranged_rows_are_the_same_rows(how: str) -> None:
    def same(recipe: recipes.Rearranged) -> None:
        known = {row.tobytes() for row in recipe.rows.call().logits}
        arranged = [call for call in recipe.expand().calls if {row.tobytes() for row in call.logits} <= known]
        assert len(arranged) >= 3 and any(call.batch for call in arranged)

    each(recipes.rearranged(2, (how,)), same)


def test_resharded_rows_are_the_same_rows_at_one_width() -> None:
    def same(recipe: recipes.Resharded) -> None:
        calls = recipe.expand().calls
        assert len({call.layout.padded_size for call in calls}) == 1
        assert len({call.logits.tobytes() for call in (*calls, *recipe.over(1).calls)}) == 1

    each(recipes.resharded(3), same)


# -- what draws reach --------------------------------------------------------------------------------------------------


def winner(call: Call) -> int:
    return int(oracle_tokens(call.values()).max(initial=0))


def ties_when_rounded(call: Call) -> bool:
    rounded = bits.decode(bits.encode(call.values(), "bfloat16"), "bfloat16")
    return bool((tied_set(rounded) > tied_set(call.values())).any())


def nan_signs(call: Call) -> set[int]:
    nans = call.logits[bits.is_nan(call.logits, call.dtype)]
    return set(np.unique(nans & bits.sign_bit(call.dtype)).tolist())


COVERAGE: dict[str, Callable[[Call], bool]] = {
    "batch 0": lambda call: call.batch == 0,
    "batch 1": lambda call: call.batch == 1,
    "a thousand rows": lambda call: call.batch > 1000,
    "an empty first shard": lambda call: call.layout.bounds[0][1] == 0,
    "an empty middle shard": lambda call: call.layout.bounds[1][0] == call.layout.bounds[1][1],
    "an empty last shard": lambda call: call.layout.bounds[-1][0] == call.layout.bounds[-1][1],
    "a vocabulary of 1": lambda call: call.layout.vocab_size == 1,
    "fewer ids than ranks": lambda call: call.layout.vocab_size < 3,
    "padding on no rank": lambda call: not any(call.num_padding),
    "padding on every rank": lambda call: all(call.num_padding),
    "padding on some ranks only": lambda call: any(call.num_padding) and not all(call.num_padding),
    "a winner past 2049": lambda call: winner(call) > 2049,
    "a winner past 65536": lambda call: winner(call) > 65536,
    "the last id wins": lambda call: call.layout.vocab_size > 256 and winner(call) == call.layout.vocab_size - 1,
    "float32 rows that tie in bfloat16": lambda call: call.dtype == "float32" and ties_when_rounded(call),
    "NaNs of both signs": lambda call: len(nan_signs(call)) == 2,
    "rows that are all -inf": lambda call: bool((call.logits == bits.neg_inf(call.dtype)).all(axis=1).any()),
    "zeros of both signs that tie": lambda call: bool(
        ((call.logits == 0) & tied_set(call.values())).any()
        and ((call.logits == bits.sign_bit(call.dtype)) & tied_set(call.values())).any()
    ),
}


@pytest.mark.parametrize("wanted", COVERAGE)
def test_draws_reach(wanted: str) -> None:
    def reached(recipe: recipes.Rows) -> bool:
        call = recipe.call()
        return (call.batch > 0 or wanted == "batch 0") and COVERAGE[wanted](call)

    reaches(recipes.rows(3), reached)


def test_sequences_reach_a_smaller_batch_after_a_larger_one_and_equal_batches() -> None:
    def sizes(recipe: recipes.Calls) -> list[int]:
        return [rows.batch for rows in recipe.calls]

    reaches(recipes.calls(2), lambda recipe: any(a > b > 0 for a, b in pairwise(sizes(recipe))))
    reaches(recipes.calls(2), lambda recipe: len(set(sizes(recipe))) < len(sizes(recipe)))
    reaches(recipes.calls(2), lambda recipe: 0 in sizes(recipe))
    reaches(recipes.calls(2), lambda recipe: len({rows.dtype for rows in recipe.calls}) > 1)
