"""Every injective table of a few draft ids, with every weak ordering of its columns over every split."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from properties.exhaustive.batches import Batch, grouped, inert
from properties.exhaustive.orderings import FORMS, NEG_INF_BELOW, PLAIN, realise, weak_orderings
from refimpl import bits
from refimpl.case import Call
from refimpl.vocab.d2t import offsets
from refimpl.vocab.layouts import all_splits, layout_from_sizes


def injective_tables(draft: int, target: int) -> Iterator[np.ndarray]:
    """Target ids of every injective table of ``draft`` ids into ``target`` ids: target! / (target - draft)! of them."""
    for ids in itertools.permutations(range(target), draft):
        yield np.array(ids, np.int64)


def sizes(tp_size: int, nightly: bool) -> tuple[int, int]:
    """Up to how many draft ids, in how many target ids."""
    if tp_size <= 2:
        return (5, 6) if nightly else (3, 4)
    return (4, 5) if nightly and tp_size <= 4 else (3, 4) if tp_size <= 4 else (2, 3)


def ordered_rows(columns: int, dtype: str, forms: tuple[str, ...] = FORMS) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Patterns of every ordering in the forms, mask of the top class, and the first of it.

    Without the row that is all -inf: under a table it has a rule of its own.
    """
    orderings = weak_orderings(columns)
    top = orderings.classes == orderings.num_classes[:, None] - 1
    parts = []
    for form in forms:
        kept = slice(1, None) if form == NEG_INF_BELOW else slice(None)
        parts.append((realise(orderings, dtype, form)[kept], top[kept], orderings.tokens[kept]))
    patterns, tops, tokens = (np.concatenate(part) for part in zip(*parts, strict=True))
    return patterns, tops, tokens


def tokens_under(ids: np.ndarray, top: np.ndarray, winner: np.ndarray, tie_rule: str) -> np.ndarray:
    """The lowest target of the top class, or the target of its lowest draft id."""
    if tie_rule == "draft_id":
        return ids[winner]
    return np.where(top, ids, np.iinfo(np.int64).max).min(axis=1)


def of_tables(tp_size: int, tie_rule: str, nightly: bool) -> Iterator[Batch]:
    """Each table in every dtype in the nightly, else in one, all of them in turn."""
    most, target = sizes(tp_size, nightly)
    for draft in range(1, most + 1):
        rows = {dtype: ordered_rows(draft, dtype) for dtype in bits.DTYPES}
        calls = []
        for number, ids in enumerate(injective_tables(draft, target)):
            for dtype in bits.DTYPES if nightly else [bits.DTYPES[number % len(bits.DTYPES)]]:
                patterns, top, winner = rows[dtype]
                right, table = tokens_under(ids, top, winner, tie_rule), offsets(ids)
                splits = all_splits(draft, tp_size)
                calls += [(Call(layout, dtype, patterns, inert(dtype), table), right) for layout in splits]
        yield from grouped(calls, f"tables {tie_rule} {draft} {target} {tp_size} {nightly}")


# Where a target id or its offset no longer fits: bfloat16, float16, 16 bits, float32; each with its neighbours.
TARGETS = (0, 1, 255, 256, 257, 2048, 2049, 32767, 32768, 32769, 65535, 65536, 65537)
TARGETS_PAST_FLOAT32 = (2**24 - 1, 2**24, 2**24 + 1)


def of_far_targets(tp_size: int) -> Iterator[Batch]:
    """Two draft ids, one on the first and one on the last rank, with every rising pair of far targets."""
    layout = layout_from_sizes([1, *[0] * (tp_size - 2), 1] if tp_size > 1 else [2])
    for numbers, dtype in ((TARGETS, "bfloat16"), (TARGETS_PAST_FLOAT32, "float16")):
        logits, top, winner = ordered_rows(2, dtype, (PLAIN,))  # each is as wide as its highest target
        calls = []
        for pair in itertools.combinations(numbers, 2):
            ids = np.array(pair, np.int64)
            right = tokens_under(ids, top, winner, "target_id")
            calls.append((Call(layout, dtype, logits, inert(dtype), offsets(ids)), right))
        yield from grouped(calls, f"far targets {tp_size} {dtype}")
