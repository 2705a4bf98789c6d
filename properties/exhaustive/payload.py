"""Values against values and ids against ids: what is sent must keep the order of every two candidates.

Two ranks hold one column each, so that a row is one comparison. Patterns stand in ascending order of their values in a
*scale*, each with its place; equal values (both zeros, all NaNs) share a place. The first rank wins where its place is
not below the other's.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

import numpy as np

from properties.exhaustive.batches import Batch, grouped, inert
from refimpl import bits
from refimpl.case import Call
from refimpl.vocab.layouts import Layout, layout_from_sizes

ALL_PATTERNS = 1 << 16
_CALL_VALUES = 1 << 22


def places(patterns: np.ndarray, dtype: str) -> np.ndarray:
    """int64 in the order in which values win: both zeros alike, all NaNs alike and above +inf."""
    ordinals = bits.ordinal(patterns, dtype)
    ordinals[bits.is_nan(patterns, dtype)] = bits.INFINITY[dtype] + 1
    return ordinals


@functools.lru_cache(maxsize=4)
def every_pattern(dtype: str) -> np.ndarray:
    """All patterns of a 16-bit dtype in ascending order of their values, equal ones in the order of their bits."""
    patterns = np.arange(ALL_PATTERNS, dtype=np.uint16)
    return patterns[np.argsort(places(patterns, dtype), kind="stable")]


def landmarks(dtype: str) -> np.ndarray:
    """Where number formats turn, in ascending order of their values."""
    patterns = bits.landmarks(dtype)
    return patterns[np.argsort(places(patterns, dtype), kind="stable")]


def between(tp_size: int, first: int, second: int) -> Layout:
    """One column on each of two ranks, the other shards empty; both on one rank if they are the same."""
    sizes = [0] * tp_size
    sizes[first] += 1
    sizes[second] += 1
    return layout_from_sizes(sizes)


def duel(layout: Layout, dtype: str, left: np.ndarray, right: np.ndarray) -> tuple[Call, np.ndarray]:
    """``left`` against ``right``, row by row, and which wins."""
    logits = np.stack([left, right], axis=1)
    tokens = (places(left, dtype) < places(right, dtype)).astype(np.int64)
    return Call(layout, dtype, logits, inert(dtype)), tokens


def neighbours(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of values next to each other; of float32 those around the landmarks, and as far off as others round."""
    if dtype != "float32":
        scale = every_pattern(dtype)
        return scale[:-1], scale[1:]
    highest = bits.INFINITY[dtype]
    around = np.unique(bits.ordinal(bits.landmarks(dtype), dtype)[:, None] + np.arange(-2, 3))
    around = around[np.abs(around) <= highest]
    steps = np.array([1 << power for power in range(18)])
    low, high = (side.ravel() for side in np.broadcast_arrays(around[:, None], around[:, None] + steps))
    kept = np.abs(high) <= highest
    return bits.from_ordinal(low[kept], dtype), bits.from_ordinal(high[kept], dtype)


def values(tp_size: int, nightly: bool) -> Iterator[Batch]:
    """Landmarks against landmarks and neighbours against neighbours: both ways round, on every two ranks and inside one
    shard, in each dtype. Every 16-bit pattern on the first rank against every landmark on the last; in the
    nightly the other way round too."""
    pairs = [*itertools.combinations(range(tp_size), 2), (0, 0)]
    for dtype in bits.DTYPES:
        known = landmarks(dtype)
        left, right = (side.ravel() for side in np.meshgrid(known, known))
        low, high = neighbours(dtype)
        sides = np.concatenate([left, low, high]), np.concatenate([right, high, low])
        calls = (duel(between(tp_size, *pair), dtype, *sides) for pair in pairs)
        yield from grouped(calls, f"values {tp_size} {dtype}")
    if tp_size > 1:
        for dtype in ("bfloat16", "float16"):
            yield from grouped(_against_landmarks(tp_size, dtype, nightly), f"patterns {tp_size} {dtype} {nightly}")


def _against_landmarks(tp_size: int, dtype: str, both_ways: bool) -> Iterator[tuple[Call, np.ndarray]]:
    every, layout = every_pattern(dtype), between(tp_size, 0, tp_size - 1)
    for some in np.array_split(landmarks(dtype), 25):
        known, pattern = np.repeat(some, ALL_PATTERNS), np.tile(every, len(some))
        yield duel(layout, dtype, pattern, known)
        if both_ways:
            yield duel(layout, dtype, known, pattern)


# -- ids --------------------------------------------------------------------------------------------------------------

# Where an id no longer fits: bfloat16, float16, 16 bits; each with its neighbours, and the last id.
SMALL_IDS = (0, 1, 127, 128, 255, 256, 257, 258, 2047, 2048, 2049, 2050)
WIDE_IDS = (0, 256, 257, 2049, 32767, 32768, 32769, 65535, 65536, 65537, 65538)


def ids(tp_size: int, nightly: bool) -> Iterator[Batch]:
    """Every two of the ids, each the winner of values next to the other's, and tied; in every dtype.

    The small ones with many values (all finite landmarks in the nightly), their shards meeting in three places; the
    wide ones with few, and outside the nightly in one dtype.
    """
    for dtype in bits.DTYPES:
        label = f"ids {tp_size} {dtype} {nightly}"
        cuts = (1, 257, 2050)
        yield from grouped(_id_calls(tp_size, dtype, SMALL_IDS, cuts, 1 if nightly else 12), f"{label} small")
        if nightly or dtype == "bfloat16":
            yield from grouped(_id_calls(tp_size, dtype, WIDE_IDS, (32769,), 12 if nightly else 60), f"{label} wide")


def _id_calls(
    tp_size: int, dtype: str, numbers: tuple[int, ...], cuts: tuple[int, ...], one_in: int
) -> Iterator[tuple[Call, np.ndarray]]:
    """The first rank has the columns before the cut, the last rank those from it on."""
    known, vocab_size = landmarks(dtype), numbers[-1] + 1
    low = known[np.abs(places(known, dtype)) < bits.INFINITY[dtype]][one_in // 2 :: one_in]
    above = bits.from_ordinal(bits.ordinal(low, dtype) + 1, dtype)
    rows, tokens = [], []
    for first, second in itertools.combinations(numbers, 2):
        for left, right in ((low, low), (low, above), (above, low)):
            logits = np.full((len(low), vocab_size), bits.neg_inf(dtype), bits.STORAGE[dtype])
            logits[:, first], logits[:, second] = left, right
            rows.append(logits)
            tokens.append(np.where(places(left, dtype) < places(right, dtype), second, first))
    logits, right_tokens = np.concatenate(rows), np.concatenate(tokens).astype(np.int64)
    step = max(1, _CALL_VALUES // vocab_size)
    for cut in cuts if tp_size > 1 else (vocab_size,):
        layout = layout_from_sizes([cut, *[0] * (tp_size - 2), vocab_size - cut][:tp_size])
        for begin in range(0, len(logits), step):
            part = slice(begin, begin + step)
            yield Call(layout, dtype, logits[part], inert(dtype)), right_tokens[part]


def ids_past_float32(tp_size: int) -> Iterator[Batch]:
    """The first id that float32 has no number for: alone, and tied with the one before."""
    dtype, number = "bfloat16", 2**24 + 1
    layout = layout_from_sizes([number, *[0] * (tp_size - 2), 2] if tp_size > 1 else [number + 2])
    low, high = (int(bits.encode(np.array(value), dtype)) for value in (-1.0, 1.5))
    for first in (number, number - 1):
        logits = np.full((1, number + 2), low, bits.STORAGE[dtype])
        logits[0, first : number + 1] = high
        right = np.array([first], np.int64)
        yield from grouped([(Call(layout, dtype, logits, inert(dtype)), right)], f"ids {tp_size} 2**24 {first}")
