"""Every column as the winner, once: of a shard at the widths of real vocabularies, and of a layout beside its padding.

Rows of one peak slide over a base (`refimpl.case.sliding`), so that every column costs a row and no memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from properties.exhaustive.batches import Batch, grouped, inert, poison
from refimpl import bits
from refimpl.case import Call, sliding
from refimpl.vocab.layouts import Layout, even_layout, layout_from_sizes, padded_layout

WIDTHS = (4096, 8192, 16384, 32000, 32768, 65536, 75968, 131072, 151936, 262144)
# Where vectors, warps, thread blocks and tiles end; a width's own last columns are edges too.
BLOCKS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
_CALL_VALUES = 1 << 22
_FEW_PAIRS = 24
_WIDEST_AT_ONCE = 32768
_WIDEST_ON_MANY_RANKS = 8192


def on_one_rank(width: int, tp_size: int, rank: int) -> Layout:
    return layout_from_sizes([width if other == rank else 0 for other in range(tp_size)])


def background(dtype: str, size: int) -> np.ndarray:
    """Values below 1.0 of many kinds, in a period that is no multiple of a block's."""
    values = [-1.0, 0.5, -96.0, 0.0, -0.25, 0.25, -0.0, 0.75, -6.0, 0.9375, -1.5]
    patterns = np.concatenate([bits.encode(np.array(values), dtype), [bits.neg_inf(dtype)]])
    return np.tile(patterns, size // len(patterns) + 1)[:size].astype(bits.STORAGE[dtype])


def peaks(layout: Layout, dtype: str, padding: tuple[int, ...], columns: range) -> Iterator[tuple[Call, np.ndarray]]:
    """One row for each of the columns, in which it alone holds 1.0."""
    size = layout.vocab_size
    rows = max(1, _CALL_VALUES // (layout.padded_size * layout.tp_size))
    for begin in range(columns.start, columns.stop, rows):
        count = min(rows, columns.stop - begin)
        # Row i shows the base from count - 1 - i on; its column begin + i is the base's begin + count - 1.
        base = background(dtype, count + size - 1)
        base[begin + count - 1] = int(bits.encode(np.array(1.0), dtype))
        yield Call(layout, dtype, sliding(base, size), padding), np.arange(begin, begin + count)


def edges(width: int) -> np.ndarray:
    """The columns around the ends of blocks of every size: the first two, and the last that fit."""
    found = {0, 1, width - 1, width - 2}
    for block in BLOCKS:
        for start in (block, 2 * block, width // block * block, (width // block - 1) * block):
            found |= {start + step for step in (-2, -1, 0, 1)}
    return np.array(sorted(column for column in found if 0 <= column < width))


def tied_pairs(width: int, nightly: bool) -> list[tuple[int, int]]:
    """Pairs around block edges: all neighbours among the edges at the first width; at others the last column of a block
    with the first of the next, greatest blocks first. In the nightly next but one and with both ends, at any width."""
    at = [int(column) for column in edges(width)]
    if nightly:
        near = {pair for k in (1, 2, 3) for pair in zip(at, at[k:], strict=False)}
        return sorted(near | {(0, column) for column in at[1:]} | {(column, width - 1) for column in at[:-1]})
    if width == WIDTHS[0]:
        return list(itertools.pairwise(at))
    starts = (start for block in reversed(BLOCKS) for start in (block, (width - 1) // block * block))
    across = dict.fromkeys((start - 1, start) for start in starts if 0 < start < width)
    return [*itertools.islice(across, _FEW_PAIRS), (0, width - 1)]


def ties(layout: Layout, dtype: str, pairs: list[tuple[int, int]]) -> Iterator[tuple[Call, np.ndarray]]:
    """Rows of two tied columns."""
    width = layout.vocab_size
    rows = max(1, _CALL_VALUES // (layout.padded_size * layout.tp_size))
    one = int(bits.encode(np.array(1.0), dtype))
    below = background(dtype, width)
    for begin in range(0, len(pairs), rows):
        tied = np.array(pairs[begin : begin + rows])
        logits = np.repeat(below[None, :], len(tied), axis=0)
        logits[np.arange(len(tied))[:, None], tied] = one
        yield Call(layout, dtype, logits, inert(dtype)), tied[:, 0].astype(np.int64)


def widths(tp_size: int, nightly: bool) -> tuple[int, ...]:
    """Widths of which every column wins once in one run. The wider ones are for sweeps.

    Every rank holds as many cells as the widest shard, and a shard's argmax does not know how many ranks there are.
    """
    if not nightly:
        return WIDTHS[:1]
    widest = _WIDEST_AT_ONCE if tp_size <= 2 else _WIDEST_ON_MANY_RANKS
    return tuple(width for width in WIDTHS if width <= widest)


def ties_in_each_dtype(tp_size: int, nightly: bool) -> bool:
    """Whether ties of the wider shards are run in each dtype, or in one dtype a width."""
    return nightly and tp_size <= 2


def of_widths(tp_size: int, nightly: bool) -> Iterator[Batch]:
    """Every column of a shard once and ties around block edges. The shard is the last rank's, in the nightly the
    first's too; at widths of which not every column wins ties alone are run."""
    for place, width in enumerate(WIDTHS):
        every = width in widths(tp_size, nightly)
        in_turn = bits.DTYPES[place % len(bits.DTYPES)]
        for dtype in bits.DTYPES if every or ties_in_each_dtype(tp_size, nightly) else (in_turn,):
            for rank in {0, tp_size - 1} if nightly else {tp_size - 1}:
                layout = on_one_rank(width, tp_size, rank)
                label = f"width {width} {tp_size} {dtype} {rank} {nightly}"
                if every:
                    yield from grouped(peaks(layout, dtype, inert(dtype), range(width)), label)
                yield from grouped(ties(layout, dtype, tied_pairs(width, nightly)), f"{label} ties")


# -- layouts ----------------------------------------------------------------------------------------------------------

SMALL = (1, 2, 3, 7, 8, 9, 10, 15, 16, 17, 31, 33, 63, 64, 65, 100)


def small_layouts(tp_size: int) -> Iterator[Layout]:
    """Small vocabularies cut evenly, unevenly and as engines pad them, with and without further padding."""
    for vocab_size in SMALL:
        even = even_layout(vocab_size, tp_size)
        yield even
        yield Layout(even.bounds, even.padded_size + 1 + vocab_size % 8)
        yield padded_layout(vocab_size, tp_size, 8, pad_to_tp_size=True)
        if tp_size > 1:
            sizes = [vocab_size // 2 if rank == tp_size - 1 else 0 for rank in range(tp_size)]
            sizes[0] += vocab_size - sum(sizes)
            yield layout_from_sizes(sizes, 3)
            yield layout_from_sizes(sizes[::-1], vocab_size % 3)


def of_layouts(tp_size: int) -> Iterator[Batch]:
    """Every column of small layouts, padding poisoned, in each dtype; and rows lower than what masks padding."""
    for dtype in bits.DTYPES:
        yield from grouped(_layout_calls(tp_size, dtype), f"layouts {tp_size} {dtype}")


def _layout_calls(tp_size: int, dtype: str) -> Iterator[tuple[Call, np.ndarray]]:
    lowest = bits.neg_inf(dtype)
    for layout in small_layouts(tp_size):
        size = layout.vocab_size
        every = np.arange(size)
        winner = every[:, None] == every
        rows, tokens = [], []
        # The winner's value and what is below it: ordinary, all negative, lowest finite, nothing but -inf.
        one, minus_one = (int(bits.encode(np.array(value), dtype)) for value in (1.0, -1.0))
        for high, low in ((one, minus_one), (minus_one, lowest - 1), (lowest - 2, lowest - 1), (lowest - 1, lowest)):
            rows.append(np.where(winner, high, low))
            tokens.append(every)
        rows.append(np.full((1, size), lowest))
        tokens.append(every[:1])
        logits, right = np.concatenate(rows).astype(bits.STORAGE[dtype]), np.concatenate(tokens)
        poisons = poison(dtype)
        if layout.padded_size * layout.tp_size > size:
            # Patterns are dealt out row by row: of as many copies each sees another one in every padding cell.
            logits, right = np.repeat(logits, len(poisons), axis=0), np.repeat(right, len(poisons))
        yield Call(layout, dtype, logits, poisons), right


# Published sizes (fixtures/heads/), no multiple of 64 among them.
REAL = (32000, 50257, 128256, 151936)


def of_real_layouts(tp_size: int, nightly: bool) -> Iterator[Batch]:
    """The columns at the edges of every shard of real vocabularies; in the nightly every column of the smallest."""
    for number, vocab_size in enumerate(REAL):
        layout = padded_layout(vocab_size, tp_size, pad_to_tp_size=True)
        dtype = bits.DTYPES[number % len(bits.DTYPES)]
        for begin, end in _stretches(layout, nightly and number == 0):
            calls = peaks(layout, dtype, poison(dtype), range(begin, end))
            yield from grouped(calls, f"layout {vocab_size} {tp_size} {dtype} {begin}")


def _stretches(layout: Layout, nightly: bool) -> Iterator[tuple[int, int]]:
    if nightly:
        yield 0, layout.vocab_size
        return
    for start, end in layout.bounds:
        if end - start <= 16:
            if end > start:
                yield start, end
        else:
            yield start, start + 8
            yield end - 8, end
