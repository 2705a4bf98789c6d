"""What stands beside a row and what ran before it: every order and every cut of a few rows, every sequence of calls."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from properties.exhaustive.batches import Batch, grouped, inert
from refimpl import bits
from refimpl.case import Call
from refimpl.vocab.d2t import offsets
from refimpl.vocab.layouts import Layout, layout_from_sizes

ROWS = 4


def layouts(tp_size: int) -> tuple[Layout, Layout]:
    """Two layouts of one shape: the same vocabulary and width, other bounds."""
    if tp_size == 1:
        return layout_from_sizes([6]), layout_from_sizes([6], 1)
    sizes = [3, *[1] * (tp_size - 2), 2]
    return layout_from_sizes(sizes), layout_from_sizes(sizes[::-1])


def rows(layout: Layout, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Four rows that call for different things, and their tokens: the last column alone, a tie of the first column of
    every rank, the last column's NaN, and nothing but -inf."""
    size = layout.vocab_size
    logits = np.full((ROWS, size), int(bits.encode(np.array(-1.0), dtype)), bits.STORAGE[dtype])
    logits[0, -1] = int(bits.encode(np.array(2.0), dtype))
    logits[1, [start for start, end in layout.bounds if end > start]] = int(bits.encode(np.array(1.0), dtype))
    logits[2, -1] = bits.NAN[dtype]
    logits[3] = bits.neg_inf(dtype)
    return logits, np.array([size - 1, 0, size - 1, 0], np.int64)


def compositions(n: int) -> Iterator[tuple[int, ...]]:
    """Every way to cut n rows into batches, in order: 2 ** (n - 1) of them."""
    for cuts in itertools.product((False, True), repeat=n - 1):
        ends = [place for place, cut in enumerate(cuts, 1) if cut] + [n]
        yield tuple(end - start for start, end in zip([0, *ends], ends, strict=False))


def arrangements() -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Every order of four rows, with every cut of it: 192 of them.

    Those of fewer rows are among them: what comes first in an arrangement has seen nothing of what follows.
    """
    for order in itertools.permutations(range(ROWS)):
        for sizes in compositions(ROWS):
            yield order, sizes


def of_batches(tp_size: int) -> Iterator[Batch]:
    """All arrangements, one call a batch: bounds and dtype change from each to the next."""
    parts = zip(layouts(tp_size), ("bfloat16", "float32"), strict=True)
    yield from grouped(_arranged(list(parts)), f"arrangements {tp_size}")


def _arranged(parts: Sequence[tuple[Layout, str]]) -> Iterator[tuple[Call, np.ndarray]]:
    known: dict[tuple[Layout, tuple[int, ...]], tuple[Call, np.ndarray]] = {}
    for number, (order, sizes) in enumerate(arrangements()):
        layout, dtype = parts[number % len(parts)]
        start = 0
        for size in sizes:
            chosen = order[start : start + size]
            start += size
            if (layout, chosen) not in known:
                logits, tokens = rows(layout, dtype)
                known[layout, chosen] = Call(layout, dtype, logits[list(chosen)], inert(dtype)), tokens[list(chosen)]
            yield known[layout, chosen]


# -- sequences --------------------------------------------------------------------------------------------------------


def every_sequence(letters: int, length: int) -> list[int]:
    """A de Bruijn sequence: a cycle in which every sequence of ``length`` letters stands once, unrolled at its end.

    Built from Lyndon words in lexicographic order (Fredricksen, Kessler and Maiorana).
    """
    cycle: list[int] = []
    word = [0] * (letters * length)

    def extend(place: int, period: int) -> None:
        if place > length:
            if length % period == 0:
                cycle.extend(word[1 : period + 1])
            return
        word[place] = word[place - period]
        extend(place + 1, period)
        for letter in range(word[place - period] + 1, letters):
            word[place] = letter
            extend(place + 1, place)

    extend(1, 1)
    return cycle + cycle[: length - 1]


def alphabet(tp_size: int, tables: bool) -> list[tuple[Call, np.ndarray]]:
    """Calls that differ in what a path may keep: rows, batch size, none at all, bounds, dtype, table, other table."""
    first, second = layouts(tp_size)
    found = []
    for layout, dtype, chosen in (
        (first, "bfloat16", [0, 1]),
        (first, "bfloat16", [2, 3, 1, 0, 1]),
        (first, "bfloat16", []),
        (second, "bfloat16", [1, 0]),
        (first, "float32", [2, 0]),
    ):
        logits, tokens = rows(layout, dtype)
        found.append((Call(layout, dtype, logits[chosen], inert(dtype)), tokens[chosen]))
    if tables:
        logits, tokens = rows(first, "bfloat16")
        size = first.vocab_size
        for ids in (2 * np.arange(size) + 1, np.arange(size) + np.arange(size) // 2 * 2):
            chosen = [1, 0]
            call = Call(first, "bfloat16", logits[chosen], inert("bfloat16"), offsets(ids))
            found.append((call, ids[tokens[chosen]]))
    return found


def of_sequences(tp_size: int, length: int, tables: bool) -> Iterator[Batch]:
    """Every sequence of so many calls of the alphabet, in one run of the ranks."""
    letters: Sequence[tuple[Call, np.ndarray]] = alphabet(tp_size, tables)
    calls = (letters[letter] for letter in every_sequence(len(letters), length))
    yield from grouped(calls, f"sequences {tp_size} {length} {tables}")
