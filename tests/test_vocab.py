"""Layouts and D2T tables: hand-computed values, every small case, and brute force against the quick algorithms."""

from __future__ import annotations

from itertools import combinations, pairwise, permutations, product
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.contract import VocabShard
from refimpl.vocab.d2t import (
    TableReport,
    check_table,
    frequency_table,
    identity_table,
    offsets,
    rising_table,
    targets,
)
from refimpl.vocab.layouts import Layout, all_splits, even_layout, layout_from_sizes, padded_layout


def sizes(layout: Layout) -> list[int]:
    return [end - start for start, end in layout.bounds]


class TestLayout:
    def test_shard_is_the_ranks_view(self) -> None:
        layout = Layout(((0, 3), (3, 3), (3, 5)), 4)
        assert (layout.tp_size, layout.vocab_size) == (3, 5)
        assert layout.shard(2) == VocabShard(2, 3, ((0, 3), (3, 3), (3, 5)), 4, 5)
        shards = [layout.shard(rank) for rank in range(3)]
        assert [(s.start, s.end, s.num_real, s.num_padding) for s in shards] == [
            (0, 3, 3, 1),
            (3, 3, 0, 4),
            (3, 5, 2, 2),
        ]

    @pytest.mark.parametrize(
        ("bounds", "padded_size", "message"),
        [
            ((), 1, "at least one rank"),
            (((1, 3),), 2, "rank 0 starts at 1, it must start at 0"),
            (((0, 2), (3, 4)), 2, "rank 1 starts at 3, it must start at 2"),
            (((0, 3), (2, 4)), 3, "rank 1 starts at 2, it must start at 3"),
            (((0, 3), (3, 2)), 3, "rank 1 ends at 2, before its start 3"),
            (((0, 0), (0, 0)), 1, "the vocabulary is empty"),
            (((0, 3), (3, 4)), 2, "padded_size 2 is less than the widest shard's 3 columns"),
        ],
    )
    def test_a_broken_layout_is_refused(
        self, bounds: tuple[tuple[int, int], ...], padded_size: int, message: str
    ) -> None:
        with pytest.raises(ValueError, match=message):
            Layout(bounds, padded_size)

    @pytest.mark.parametrize("rank", [-1, 2])
    def test_a_rank_outside_the_group_is_refused(self, rank: int) -> None:
        with pytest.raises(ValueError, match=f"rank {rank} is none of the 2 ranks"):
            even_layout(4, 2).shard(rank)

    def test_gpt2_vocabulary_at_tp_4(self) -> None:
        layout = padded_layout(50257, 4)  # padded to 50304
        assert layout.padded_size == 12576
        assert layout.bounds == ((0, 12576), (12576, 25152), (25152, 37728), (37728, 50257))
        assert layout.shard(3).num_padding == 47

    def test_qwen3_vocabulary_has_no_padding(self) -> None:
        layout = padded_layout(151936, 8)
        assert all(layout.shard(rank).num_padding == 0 for rank in range(8))

    def test_padding_may_fill_whole_ranks(self) -> None:
        assert padded_layout(10, 4) == Layout(((0, 10), (10, 10), (10, 10), (10, 10)), 16)
        assert padded_layout(20, 4) == Layout(((0, 16), (16, 20), (20, 20), (20, 20)), 16)

    def test_a_tp_size_that_does_not_divide_is_refused_or_padded_for(self) -> None:
        with pytest.raises(ValueError, match="50257 padded to 50304 is not divisible by tp_size 5"):
            padded_layout(50257, 5)
        layout = padded_layout(50257, 5, pad_to_tp_size=True)  # lcm(64, 5) = 320
        assert layout.padded_size * 5 == 50560
        assert layout.vocab_size == 50257

    def test_pad_to_tp_size_changes_nothing_that_divides(self) -> None:
        for vocab_size, tp_size in product((1, 63, 64, 65, 1000), (1, 2, 4, 8, 64)):
            assert padded_layout(vocab_size, tp_size, pad_to_tp_size=True) == padded_layout(vocab_size, tp_size)

    @pytest.mark.parametrize(("vocab_size", "tp_size", "multiple"), [(0, 1, 64), (5, 0, 64), (5, 1, 0)])
    def test_sizes_below_one_are_refused(self, vocab_size: int, tp_size: int, multiple: int) -> None:
        with pytest.raises(ValueError, match="at least 1"):
            padded_layout(vocab_size, tp_size, multiple)

    def test_even_layout(self) -> None:
        assert even_layout(10, 4) == Layout(((0, 3), (3, 6), (6, 8), (8, 10)), 3)
        assert even_layout(2, 3) == Layout(((0, 1), (1, 2), (2, 2)), 1)

    def test_layout_from_sizes(self) -> None:
        assert layout_from_sizes([0, 3, 1]) == Layout(((0, 0), (0, 3), (3, 4)), 3)
        assert layout_from_sizes([2, 2], extra_padding=3) == Layout(((0, 2), (2, 4)), 5)
        with pytest.raises(ValueError, match="rank 1 ends at 2, before its start 3"):
            layout_from_sizes([3, -1])
        with pytest.raises(ValueError, match="empty"):
            layout_from_sizes([0, 0])

    @given(st.integers(1, 500), st.integers(1, 9), st.integers(1, 70))
    def test_padded_layout_pads_the_tail_only(self, vocab_size: int, tp_size: int, multiple: int) -> None:
        layout = padded_layout(vocab_size, tp_size, multiple, pad_to_tp_size=True)
        total = layout.padded_size * tp_size
        assert vocab_size <= total
        assert total % multiple == 0
        assert sum(sizes(layout)) == vocab_size
        # Laid end to end the padded shards are the vocabulary, then padding.
        real = [column < size for size in sizes(layout) for column in range(layout.padded_size)]
        assert real == sorted(real, reverse=True)

    @pytest.mark.parametrize(("vocab_size", "tp_size"), list(product(range(1, 7), range(1, 5))))
    def test_all_splits_is_every_composition_once(self, vocab_size: int, tp_size: int) -> None:
        splits = [tuple(sizes(layout)) for layout in all_splits(vocab_size, tp_size)]
        expected = {s for s in product(range(vocab_size + 1), repeat=tp_size) if sum(s) == vocab_size}
        assert len(splits) == comb(vocab_size + tp_size - 1, tp_size - 1)
        assert set(splits) == expected


def brute_force_report(ids: tuple[int, ...]) -> TableReport:
    inverted = [(i, j) for i, j in combinations(range(len(ids)), 2) if ids[i] > ids[j]]
    return TableReport(
        errors=(),
        is_injective=len(set(ids)) == len(ids),
        is_rising=all(a < b for a, b in pairwise(ids)),
        inversions=len(inverted),
        lowest_inverted_pair=min(inverted, default=None),
    )


class TestTable:
    def test_targets_and_offsets_are_inverse(self) -> None:
        d2t = np.array([0, 2, -1, 4])
        assert targets(d2t).tolist() == [0, 3, 1, 7]
        assert offsets(targets(d2t)).tolist() == d2t.tolist()

    def test_every_order_of_up_to_six_targets(self) -> None:
        for n in range(1, 7):
            for ids in permutations(range(n)):
                assert check_table(offsets(np.array(ids)), n, n) == brute_force_report(ids)

    @given(st.lists(st.integers(0, 400), min_size=1, max_size=400, unique=True))
    def test_order_of_longer_tables(self, ids: list[int]) -> None:
        assert check_table(offsets(np.array(ids)), len(ids), 401) == brute_force_report(tuple(ids))

    @given(st.lists(st.integers(0, 60), min_size=60, max_size=300))
    def test_duplicates_are_no_inversions(self, ids: list[int]) -> None:
        report = check_table(offsets(np.array(ids)), len(ids), 61)
        expected = brute_force_report(tuple(ids))
        assert (report.inversions, report.lowest_inverted_pair) == (expected.inversions, expected.lowest_inverted_pair)
        assert (report.is_injective, report.is_rising) == (expected.is_injective, expected.is_rising)

    def test_a_reversed_table_has_every_inversion(self) -> None:
        report = check_table(offsets(np.arange(32000)[::-1]), 32000)
        assert report.inversions == 32000 * 31999 // 2
        assert report.lowest_inverted_pair == (0, 1)

    def test_the_designs_example(self) -> None:
        report = check_table(offsets(np.array([0, 2, 1])), 3, 3)
        assert report == TableReport((), is_injective=True, is_rising=False, inversions=1, lowest_inverted_pair=(1, 2))

    def test_duplicates_name_both_draft_ids_and_the_target(self) -> None:
        report = check_table(offsets(np.array([4, 7, 9, 7, 4])), 5, 10)
        assert report.errors == (
            "draft ids 1 and 3 both map to target 7 (2 of 5 draft ids repeat the target of a lower one)",
        )
        assert not report.is_injective
        assert not check_table(offsets(np.array([1, 1])), 2).is_rising

    def test_range(self) -> None:
        assert check_table(offsets(np.array([0, 9])), 2, 10).errors == ()
        assert check_table(offsets(np.array([0, 10, 11])), 3, 10).errors == (
            "target 10 of draft id 1 lies outside the target vocabulary of 10 (2 of 3 draft ids)",
        )
        assert check_table(offsets(np.array([0, -1])), 2).errors == (
            "target -1 of draft id 1 is negative (1 of 2 draft ids)",
        )
        assert check_table(offsets(np.array([2**31 - 1])), 1).errors == ()

    def test_dtype_and_length(self) -> None:
        d2t = rising_table(5, 9, np.random.default_rng(0))
        narrow = check_table(d2t.astype(np.int32), 5, 9)
        assert narrow.errors == ("d2t has dtype int32, it must be int64",)
        assert narrow.is_rising
        assert check_table(d2t, 6, 9).errors == ("d2t has shape (5,), it must be (6,)",)
        for unusable in (d2t.astype(np.float32), d2t[None], d2t.astype(np.bool_)):
            report = check_table(unusable, 5, 9)
            assert report.errors
            assert (report.is_injective, report.is_rising, report.inversions) == (False, False, None)

    def test_t2d_must_be_true_exactly_at_the_targets(self) -> None:
        d2t = offsets(np.array([1, 3, 4]))
        t2d = np.array([False, True, False, True, True, False])
        assert check_table(d2t, 3, 6, t2d).errors == ()
        assert check_table(d2t, 3, None, t2d).errors == ()
        flipped = t2d.copy()
        flipped[[0, 4]] = ~flipped[[0, 4]]
        assert check_table(d2t, 3, 6, flipped).errors == (
            "t2d is true at target 0 but d2t maps no draft id to it (2 of 6 target ids)",
        )
        flipped[0] = False
        assert check_table(d2t, 3, 6, flipped).errors == (
            "t2d is false at target 4 but d2t maps a draft id to it (1 of 6 target ids)",
        )

    def test_form_of_t2d(self) -> None:
        d2t = offsets(np.array([1, 3, 4]))
        t2d = np.array([False, True, False, True, True])
        assert check_table(d2t, 3, 6, t2d).errors == ("t2d has shape (5,), it must be (6,)",)
        assert check_table(d2t, 3, 5, t2d.astype(np.uint8)).errors == ("t2d has dtype uint8, it must be bool",)
        assert check_table(d2t, 3, None, t2d[None]).errors == ("t2d has shape (1, 5), it must be of one dimension",)

    def test_without_a_size_t2d_gives_it(self) -> None:
        errors = check_table(offsets(np.array([1, 5])), 2, None, np.array([False, True, False])).errors
        assert errors == ("target 5 of draft id 1 lies outside the target vocabulary of 3 (1 of 2 draft ids)",)

    @given(st.integers(1, 40), st.integers(0, 40), st.integers(0, 2**32))
    def test_makers_make_what_they_say(self, draft_vocab_size: int, more: int, seed: int) -> None:
        target_vocab_size = draft_vocab_size + more
        rng = np.random.default_rng(seed)
        rising = check_table(
            rising_table(draft_vocab_size, target_vocab_size, rng), draft_vocab_size, target_vocab_size
        )
        assert rising.errors == ()
        assert rising.is_rising
        by_frequency = check_table(
            frequency_table(draft_vocab_size, target_vocab_size, rng), draft_vocab_size, target_vocab_size
        )
        assert by_frequency.errors == ()
        assert by_frequency.is_rising == (draft_vocab_size == 1)

    def test_identity_table(self) -> None:
        assert targets(identity_table(4)).tolist() == [0, 1, 2, 3]
        assert check_table(identity_table(4), 4, 4) == brute_force_report((0, 1, 2, 3))

    def test_no_table_into_a_smaller_vocabulary(self) -> None:
        rng = np.random.default_rng(0)
        with pytest.raises(ValueError, match="larger"):
            rising_table(5, 4, rng)
        with pytest.raises(ValueError, match="5 draft ids have no injective table to 4 targets"):
            frequency_table(5, 4, rng)
