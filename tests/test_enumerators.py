"""The enumerators of the exhaustive families: known counts, no repeats, and rows that realise what they stand for."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from properties.exhaustive import columns, independence, orderings, payload, tables, uniformity
from properties.exhaustive.batches import Batch, poison
from refimpl import bits
from refimpl.case import Case, base_of_sliding, sliding
from refimpl.oracle import oracle_tokens
from refimpl.verdict.judge import expected_tokens
from refimpl.vocab.layouts import all_splits

_PAIR = np.array([1 << 32, 1], np.uint64)
COUNTS = {1: 1, 2: 3, 3: 13, 4: 75, 5: 541, 6: 4683, 7: 47293, 8: 545835}


def is_numpys(batch: Batch) -> bool:
    """Whether NumPy gives the tokens that were constructed."""
    return all(
        np.array_equal(expected_tokens(call), right) and right.dtype == np.int64
        for call, right in zip(batch.case.calls, batch.tokens, strict=True)
    )


# -- orderings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "count"), COUNTS.items())
def test_weak_orderings_are_as_many_as_there_are_and_differ(n: int, count: int) -> None:
    found = orderings.weak_orderings(n)
    assert len(found) == count == orderings.FUBINI[n]
    numbers = found.classes.astype(np.int64) @ (n ** np.arange(n))
    assert len(np.unique(numbers)) == count


@pytest.mark.parametrize("n", range(1, 7))
def test_weak_orderings_are_dense(n: int) -> None:
    """Classes are 0 to num_classes - 1, each of them there: with the count and no repeats, none is missing."""
    found = orderings.weak_orderings(n)
    for classes, num_classes in zip(found.classes, found.num_classes, strict=True):
        assert set(classes.tolist()) == set(range(num_classes))


def test_weak_orderings_are_those_of_brute_force() -> None:
    rows = {tuple(np.unique(row, return_inverse=True)[1].tolist()) for row in itertools.product(range(4), repeat=4)}
    assert {tuple(row) for row in orderings.weak_orderings(4).classes.tolist()} == rows


@pytest.mark.parametrize("form", orderings.FORMS)
@pytest.mark.parametrize("dtype", bits.DTYPES)
@pytest.mark.parametrize("n", range(1, 8))
def test_rows_realise_their_ordering(n: int, dtype: str, form: str) -> None:
    """In each dtype: columns compare as their classes do, the top class is NaN or the bottom -inf where it should."""
    found = orderings.weak_orderings(n)
    logits = orderings.realise(found, dtype, form)
    values = bits.decode(logits, dtype)
    top = found.classes == found.num_classes[:, None] - 1
    nan = np.isnan(values)
    assert np.array_equal(nan, top if form == orderings.NAN_ON_TOP else np.zeros_like(top))
    if form == orderings.NEG_INF_BELOW:
        assert np.array_equal(values == -np.inf, found.classes == 0)
    else:
        assert np.isfinite(values[~nan]).all()
    place = np.where(nan, np.inf, values)
    for first, second in itertools.combinations(range(n), 2):
        left, right = place[:, first], place[:, second]
        by_value = (left > right).astype(int) - (left < right)
        by_class = np.sign(found.classes[:, first].astype(int) - found.classes[:, second])
        assert np.array_equal(by_value, by_class)
    assert np.array_equal(oracle_tokens(values), found.tokens)


def test_equal_classes_are_spelled_differently() -> None:
    """Ties of both zeros and of unlike NaNs are among the rows."""
    found = orderings.weak_orderings(2)
    tied = orderings.realise(found, "bfloat16", orderings.PLAIN)[0]
    assert set(tied.tolist()) == {0, bits.sign_bit("bfloat16")}
    nans = orderings.realise(found, "bfloat16", orderings.NAN_ON_TOP)[0]
    assert len(set(nans.tolist())) == 2


@pytest.mark.parametrize(("n", "tp_size"), [(1, 1), (3, 2), (4, 3), (3, 5)])
def test_splits_are_every_split(n: int, tp_size: int) -> None:
    found = [layout.bounds for layout in all_splits(n, tp_size)]
    assert len(set(found)) == len(found) == math.comb(n + tp_size - 1, tp_size - 1)
    batches = list(orderings.over_splits(n, tp_size, orderings.EVERY_REALISATION))
    assert sum(batch.case.num_rows for batch in batches) == len(found) * COUNTS[n] * 9
    assert all(map(is_numpys, batches))


@pytest.mark.parametrize("tp_size", [2, 3, 4, 5])
def test_candidates_are_those_of_every_set_of_ranks(tp_size: int) -> None:
    batches = list(orderings.candidates(tp_size))
    assert all(map(is_numpys, batches))
    forms = 3 if tp_size > 4 else 9
    one_each = sum(math.comb(tp_size, held) * COUNTS[held] for held in range(1, tp_size + 1))
    among_lower = COUNTS[tp_size] * (forms - forms // 3)
    assert sum(batch.case.num_rows for batch in batches) == forms * one_each + among_lower


def test_what_a_case_holds_is_bounded() -> None:
    for batch in orderings.over_splits(7, 4, orderings.ONE_EACH[:1]):
        assert sum(call.logits.nbytes for call in batch.case.calls) < 2**27


# -- payload ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_pattern_stands_once_in_the_order_of_its_value(dtype: str) -> None:
    scale = payload.every_pattern(dtype)
    assert len(np.unique(scale)) == 2**16
    values = bits.decode(scale, dtype)
    numbers = values[~np.isnan(values)]
    assert np.isnan(values[len(numbers) :]).all()
    steps = np.diff(numbers)[1:-1]  # without those to the infinities
    assert (steps >= 0).all() and (steps == 0).sum() == 1


@pytest.mark.parametrize("tp_size", [1, 3])
def test_values_both_ways_round(tp_size: int) -> None:
    batches = [batch for batch in payload.values(tp_size, False) if batch.label.startswith("values")]
    assert all(map(is_numpys, batches))
    held = set()
    for call in (call for batch in batches for call in batch.case.calls):
        held.add(tuple(rank for rank, (start, end) in enumerate(call.layout.bounds) if end > start))
        pairs = call.logits.astype(np.uint64) @ _PAIR
        assert np.array_equal(np.unique(pairs), np.unique(call.logits[:, ::-1].astype(np.uint64) @ _PAIR))
        known = payload.landmarks(call.dtype).astype(np.uint64)
        assert np.isin(((known[:, None] << np.uint64(32)) | known).ravel(), pairs).all()
    assert held == {(0,), *itertools.combinations(range(tp_size), 2)}


@pytest.mark.parametrize(("nightly", "ways"), [(False, 1), (True, 2)])
def test_every_pattern_meets_every_landmark(nightly: bool, ways: int) -> None:
    met = {"bfloat16": 0, "float16": 0}
    for batch in payload.values(2, nightly):
        if batch.label.startswith("patterns"):
            for call in batch.case.calls:
                met[call.dtype] += len(np.unique(call.logits.astype(np.uint64) @ _PAIR))
    for dtype, count in met.items():
        assert count == ways * 2**16 * len(payload.landmarks(dtype))


@pytest.mark.parametrize("tp_size", [1, 2, 3])
def test_ids_meet_each_other(tp_size: int) -> None:
    batches = list(payload.ids(tp_size, False))
    assert all(map(is_numpys, batches))
    winners = {int(token) for batch in batches for tokens in batch.tokens for token in tokens}
    assert winners == {*payload.SMALL_IDS, *payload.WIDE_IDS}


# -- columns ----------------------------------------------------------------------------------------------------------


def test_every_column_wins_once() -> None:
    for tp_size in (1, 3):
        layout = columns.on_one_rank(4096, tp_size, tp_size - 1)
        won = []
        for call, tokens in columns.peaks(layout, "bfloat16", (0,), range(4096)):
            assert np.array_equal(expected_tokens(call), tokens)
            won += tokens.tolist()
        assert won == list(range(4096))


def test_ties_lie_around_every_block_edge() -> None:
    for width in columns.WIDTHS[:4]:
        pairs = columns.tied_pairs(width, True)
        for block in (block for block in columns.BLOCKS if 2 * block < width):
            assert (block - 1, block) in pairs
        layout = columns.on_one_rank(width, 2, 1)
        for call, tokens in columns.ties(layout, "float16", columns.tied_pairs(width, False)):
            assert np.array_equal(expected_tokens(call), tokens)


@pytest.mark.parametrize("tp_size", [1, 3])
def test_layouts_put_every_poison_into_every_padding_cell(tp_size: int) -> None:
    batches = list(columns.of_layouts(tp_size))
    assert all(map(is_numpys, batches))
    for batch in batches:
        for call in batch.case.calls:
            for rank, (start, end) in enumerate(call.layout.bounds):
                cells = call.local_logits(rank)[:, end - start :]
                for column in cells.T:
                    assert set(column.tolist()) == set(poison(call.dtype))
    won = {
        (c.layout, int(t))
        for batch in batches
        for c, ts in zip(batch.case.calls, batch.tokens, strict=True)
        for t in ts
    }
    for layout in columns.small_layouts(tp_size):
        assert {token for found, token in won if found == layout} == set(range(layout.vocab_size))


@pytest.mark.parametrize("tp_size", [16, 32, 64])
def test_layouts_of_many_ranks_by_calculation(tp_size: int) -> None:
    """Local to global ids: every column of every rank is another id, in order, and none is missing."""
    for vocab_size in columns.REAL:
        layout = columns.padded_layout(vocab_size, tp_size, pad_to_tp_size=True)
        ids = [layout.shard(rank).start + np.arange(layout.shard(rank).num_real) for rank in range(tp_size)]
        assert np.array_equal(np.concatenate(ids), np.arange(vocab_size))
        assert all(layout.shard(rank).num_padding >= 0 for rank in range(tp_size))


def test_sliding_rows_are_a_view_that_travels_as_its_base() -> None:
    base = np.arange(10, dtype=np.uint16)
    rows = sliding(base, 4)
    assert rows.shape == (7, 4) and rows[0].tolist() == [6, 7, 8, 9] and rows[-1].tolist() == [0, 1, 2, 3]
    found = base_of_sliding(rows)
    assert found is not None and np.array_equal(found, base)
    part = base_of_sliding(rows[:, 1:3])
    assert part is not None and np.array_equal(sliding(part, 2), rows[:, 1:3])
    assert base_of_sliding(np.ascontiguousarray(rows)) is None


def test_a_case_of_sliding_rows_comes_back_from_its_file(tmp_path) -> None:
    layout = columns.on_one_rank(64, 2, 1)
    case = Case(tuple(call for call, _ in columns.peaks(layout, "float32", (0,), range(64))) * 2)
    file = tmp_path / "case.safetensors"
    file.write_bytes(case.to_bytes({}))
    assert file.stat().st_size < 4096
    assert Case.load(file)[0].digest == case.digest
    d2t = np.arange(64)  # one table of all calls: it does not slide, whatever the rows of its call do
    mapped = Case(tuple(replace(call, d2t=d2t) for call in case.calls))
    file.write_bytes(mapped.to_bytes({}))
    assert Case.load(file)[0].digest == mapped.digest


# -- tables, independence, uniformity ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("draft", "target"), [(1, 4), (2, 4), (3, 4), (3, 5)])
def test_tables_are_every_injective_one(draft: int, target: int) -> None:
    found = [tuple(ids) for ids in tables.injective_tables(draft, target)]
    assert len(set(found)) == len(found) == math.perm(target, draft)


@pytest.mark.parametrize("tie_rule", ["target_id", "draft_id"])
def test_tokens_under_tables_are_numpys(tie_rule: str) -> None:
    for batch in tables.of_tables(2, tie_rule, False):
        for call, right in zip(batch.case.calls, batch.tokens, strict=True):
            assert np.array_equal(expected_tokens(call, tie_rule), right)
    assert all(map(is_numpys, itertools.islice(tables.of_far_targets(2), 1)))


def test_both_tie_rules_agree_exactly_on_rising_tables() -> None:
    """Of every table of 3 draft ids, over every ordering: equal tokens on all rows if and only if it rises."""
    rows = tables.ordered_rows(3, "float32")
    for ids in tables.injective_tables(3, 4):
        same = [tables.tokens_under(ids, *rows[1:], rule).tolist() for rule in ("target_id", "draft_id")]
        assert (same[0] == same[1]) == bool((np.diff(ids) > 0).all())


def test_every_order_and_cut() -> None:
    found = list(independence.arrangements())
    assert len(set(found)) == len(found) == 24 * 8
    assert all(sum(sizes) == len(order) == 4 for order, sizes in found)


def test_arrangements_begin_with_every_order_and_cut_of_fewer_rows() -> None:
    begun = set()
    for order, sizes in independence.arrangements():
        ends = list(itertools.accumulate(sizes))
        batches = [order[end - size : end] for end, size in zip(ends, sizes, strict=True)]
        begun |= {tuple(batches[:many]) for many in range(1, len(batches) + 1)}
    for count in (1, 2, 3):
        for order in itertools.permutations(range(4), count):
            for sizes in independence.compositions(count):
                ends = list(itertools.accumulate(sizes))
                assert tuple(order[end - size : end] for end, size in zip(ends, sizes, strict=True)) in begun


@pytest.mark.parametrize(("letters", "length"), [(2, 2), (3, 3), (7, 3), (5, 4)])
def test_every_sequence_stands_once(letters: int, length: int) -> None:
    sequence = independence.every_sequence(letters, length)
    windows = [tuple(sequence[i : i + length]) for i in range(len(sequence) - length + 1)]
    assert len(windows) == letters**length
    assert set(windows) == set(itertools.product(range(letters), repeat=length))


@pytest.mark.parametrize("tp_size", [1, 2, 3, 8])
def test_small_batches_have_numpys_tokens(tp_size: int) -> None:
    assert all(map(is_numpys, independence.of_batches(tp_size)))
    assert all(map(is_numpys, independence.of_sequences(tp_size, 2, True)))
    assert all(map(is_numpys, uniformity.of_situations(tp_size, "bfloat16")))


def test_every_situation_on_every_rank() -> None:
    found = list(uniformity.combinations(3))
    assert len(set(found)) == len(found) == 6**3
    names = tuple(uniformity.situations("float32"))
    many = set(uniformity.combinations(8))
    for first, second in itertools.combinations(range(8), 2):
        assert {(held[first], held[second]) for held in many} == set(itertools.product(names, repeat=2))
