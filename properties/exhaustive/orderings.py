"""Weak orderings: orders with ties, all that an argmax can tell apart.

An ordering of n columns is a row of n class numbers, dense from 0 for the lowest. It is built column by column: the
next column joins one of the k classes there are, or opens a new one below, between or above them. Every ordering comes
about in exactly one way, and so does its winner: the next column takes over only where it opens a new class on top,
since of equals the lower id stays.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from properties.exhaustive.batches import Batch, grouped, inert
from refimpl import bits
from refimpl.case import Call
from refimpl.vocab.layouts import Layout, all_splits, layout_from_sizes

# The number of weak orderings of n items (OEIS A000670), from n = 0.
FUBINI = (1, 1, 3, 13, 75, 541, 4683, 47293, 545835, 7087261)

PLAIN, NAN_ON_TOP, NEG_INF_BELOW = "plain", "nan on top", "-inf below"
FORMS = (PLAIN, NAN_ON_TOP, NEG_INF_BELOW)


@dataclass(frozen=True, eq=False)
class Orderings:
    """``classes``: uint8 ``(count, n)``. ``num_classes``, ``winner``: uint8 ``(count,)``."""

    classes: np.ndarray
    num_classes: np.ndarray
    winner: np.ndarray

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def tokens(self) -> np.ndarray:
        return self.winner.astype(np.int64)


@functools.lru_cache(maxsize=4)
def weak_orderings(n: int) -> Orderings:
    """All weak orderings of n columns, those of fewer classes first."""
    if n < 1:
        raise ValueError(f"n is {n}, it must be at least 1")
    if n == 1:
        zero = np.zeros(1, np.uint8)
        return Orderings(zero[:, None], zero + np.uint8(1), zero)
    fewer = weak_orderings(n - 1)
    found: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in range(n + 1)]
    for k in range(1, n):
        chosen = fewer.num_classes == k
        classes, winner = fewer.classes[chosen], fewer.winner[chosen]
        for joined in range(k):
            found[k].append((_with_column(classes, joined), winner))
        for opened in range(k + 1):
            shifted = classes + (classes >= opened)
            last = np.full_like(winner, n - 1)
            found[k + 1].append((_with_column(shifted, opened), last if opened == k else winner))
    return Orderings(
        np.concatenate([classes for group in found for classes, _ in group]),
        np.repeat(np.arange(n + 1, dtype=np.uint8), [sum(len(winner) for _, winner in group) for group in found]),
        np.concatenate([winner for group in found for _, winner in group]),
    )


def _with_column(classes: np.ndarray, of_last: int) -> np.ndarray:
    last = np.full((len(classes), 1), of_last, np.uint8)
    return np.concatenate([classes, last], axis=1).astype(np.uint8, copy=False)


# -- values -----------------------------------------------------------------------------------------------------------

# Odd steps apart and on both sides of zero; every dtype holds them.
_VALUES = np.array([-96.0, -6.0, -1.5, -1.0, -0.25, 0.0, 0.25, 1.0, 1.5, 6.0, 96.0])
_ZERO = 5


def _scale(num_classes: int) -> np.ndarray:
    """Ascending values, one a class, with 0.0 in their middle."""
    first = _ZERO - num_classes // 2
    return _VALUES[first : first + num_classes]


@functools.lru_cache(maxsize=64)
def _patterns(n: int, dtype: str, form: str) -> np.ndarray:
    """Bit patterns by number of classes, class and column. Equal values are spelled differently where they can be:
    zeros of both signs, NaNs of both signs and other payloads."""
    storage, sign = bits.STORAGE[dtype], bits.sign_bit(dtype)
    table = np.zeros((n + 1, n, n), storage)
    for k in range(1, n + 1):
        table[k, :k] = bits.encode(_scale(k), dtype)[:, None]
        zero = k // 2
        table[k, zero, 1::2] = sign
        if form == NAN_ON_TOP:
            nans = np.array([bits.NAN[dtype], bits.NAN[dtype] | sign, bits.INFINITY[dtype] + 1, 2 * sign - 1], storage)
            table[k, k - 1] = nans[np.arange(n) % len(nans)]
        elif form == NEG_INF_BELOW:
            table[k, 0] = bits.neg_inf(dtype)
    return table


def realise(orderings: Orderings, dtype: str, form: str, rows: slice = slice(None)) -> np.ndarray:
    """Rows of the dtype's bit patterns in these orders: ``(count, n)``.

    ``form``: plain values; the top class as NaN; or the bottom class as -inf (a row of one class is then all -inf).
    """
    classes = orderings.classes[rows]
    n = classes.shape[1]
    table = _patterns(n, dtype, form)
    flat = (orderings.num_classes[rows, None].astype(np.intp) * n + classes) * n + np.arange(n)
    return table.reshape(-1)[flat]


# -- batches ----------------------------------------------------------------------------------------------------------

Realisation = tuple[str, str]  # a dtype and a form
EVERY_REALISATION = tuple(itertools.product(bits.DTYPES, FORMS))
# At the widest scope each form is run in one dtype, each dtype in one form.
ONE_EACH = (("bfloat16", PLAIN), ("float16", NAN_ON_TOP), ("float32", NEG_INF_BELOW))
_ROWS = 1 << 16


def columns_over(tp_size: int, nightly: bool) -> tuple[int, int]:
    """Up to how many columns every form is run in every dtype; and in one dtype each, `ONE_EACH`."""
    if tp_size <= 2:
        return (8, 9) if nightly else (6, 8)
    if tp_size <= 4:
        return (6, 7) if nightly else (5, 6)
    if tp_size <= 8:
        return (4, 4) if nightly else (3, 3)
    return 2, 2


def realisations(n: int, tp_size: int, nightly: bool) -> tuple[Realisation, ...]:
    every, _ = columns_over(tp_size, nightly)
    return EVERY_REALISATION if n <= every else ONE_EACH


def over_splits(n: int, tp_size: int, realisations: Iterable[Realisation]) -> Iterator[Batch]:
    """Every weak ordering of n columns over every contiguous split, empty shards included."""
    layouts = tuple(all_splits(n, tp_size))
    for dtype, forms in by_dtype(realisations):
        for part, (logits, tokens) in enumerate(realised(n, dtype, forms)):
            calls = ((Call(layout, dtype, logits, inert(dtype)), tokens) for layout in layouts)
            yield from grouped(calls, f"orderings {n} {tp_size} {dtype} {' + '.join(forms)} {part}")


def by_dtype(realisations: Iterable[Realisation]) -> list[tuple[str, list[str]]]:
    """Each dtype with the forms asked for in it: rows of one dtype can share a call."""
    forms: dict[str, list[str]] = {}
    for dtype, form in realisations:
        forms.setdefault(dtype, []).append(form)
    return list(forms.items())


def realised(n: int, dtype: str, forms: list[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Patterns and tokens of all orderings in all forms, in calls of a bounded size; a few rows are one call."""
    orderings = weak_orderings(n)
    if len(forms) * len(orderings) <= _ROWS:
        every = np.concatenate([realise(orderings, dtype, form) for form in forms])
        yield every, np.tile(orderings.tokens, len(forms))
        return
    for form in forms:
        for begin in range(0, len(orderings), _ROWS):
            rows = slice(begin, begin + _ROWS)
            yield realise(orderings, dtype, form, rows), orderings.tokens[rows]


def candidates(tp_size: int) -> Iterator[Batch]:
    """Every weak ordering of the candidates of every non-empty set of ranks; the other ranks' shards are empty.

    A candidate is its shard's only column, or in another column of its shard on each rank, all others being lower.
    """
    for dtype, form in ONE_EACH if tp_size > 4 else EVERY_REALISATION:
        yield from grouped(_candidate_calls(tp_size, dtype, form), f"candidates {tp_size} {dtype} {form}")


def _candidate_calls(tp_size: int, dtype: str, form: str) -> Iterator[tuple[Call, np.ndarray]]:
    for held in itertools.product((0, 1), repeat=tp_size):
        count = sum(held)
        if not count:
            continue
        orderings = weak_orderings(count)
        logits, winner = realise(orderings, dtype, form), orderings.tokens
        yield Call(layout_from_sizes(held), dtype, logits, inert(dtype)), winner
        if form == NEG_INF_BELOW or count < tp_size:
            continue  # nothing is lower than -inf
        yield _among_lower_columns(layout_from_sizes([3] * tp_size), dtype, logits, winner)


def _among_lower_columns(layout: Layout, dtype: str, logits: np.ndarray, winner: np.ndarray) -> tuple[Call, np.ndarray]:
    places = np.array([start + 2 - rank % 3 for rank, (start, _) in enumerate(layout.bounds)])
    lowest = bits.neg_inf(dtype) - 1
    wide = np.full((len(logits), layout.vocab_size), lowest, bits.STORAGE[dtype])
    wide[:, places] = logits
    return Call(layout, dtype, wide, inert(dtype)), places[winner]
