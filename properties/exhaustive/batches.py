"""A batch of enumerated rows: its case, its right tokens, and the name that it has in every run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from refimpl import bits
from refimpl.case import Call, Case
from refimpl.session import Checker

# Values of a case: what a rank holds at once stays far below the 2 GiB that a scope may take.
CASE_VALUES = 1 << 23
# Calls of a case: many ranks take 20 ms for one. Ranks live on from case to case, and so does what a path remembers.
CASE_CALLS = 96


@dataclass(frozen=True, eq=False)
class Batch:
    """``tokens``: int64 ``(batch,)`` for each call of the case."""

    case: Case
    tokens: tuple[np.ndarray, ...]
    label: str


def run(check: Checker, batches: Iterable[Batch]) -> None:
    """Hold every batch against its tokens, up to the first that the path refuses."""
    for batch in batches:
        if check.known(batch.case, batch.tokens, label=batch.label).refused is not None:
            return


def grouped(calls: Iterable[tuple[Call, np.ndarray]], label: str, bystanders: int = 0) -> Iterator[Batch]:
    """Calls and their tokens as cases of a bounded size. ``bystanders``: ranks of the world before the group."""
    part: list[tuple[Call, np.ndarray]] = []
    size, number = 0, 0

    def batch() -> Batch:
        case = Case(tuple(call for call, _ in part), bystanders)
        return Batch(case, tuple(right for _, right in part), f"{label} {number}")

    for call, right in calls:
        if part and (size + call.logits.size > CASE_VALUES or len(part) == CASE_CALLS):
            yield batch()
            part, size, number = [], 0, number + 1
        part.append((call, right))
        size += call.logits.size
    if part:
        yield batch()


def inert(dtype: str) -> tuple[int, ...]:
    """Padding that wins nothing: for families that are not about padding."""
    return (bits.neg_inf(dtype),)


def poison(dtype: str) -> tuple[int, ...]:
    """Every special value, those first that beat most: NaNs of both signs, infinities, extremes, zeros, subnormals."""
    sign, inf = bits.sign_bit(dtype), bits.INFINITY[dtype]
    positive = (bits.NAN[dtype], inf, inf - 1, inf + 1, int(bits.encode(np.array(1.0), dtype)), 1, 0)
    return tuple(pattern | flip for pattern in positive for flip in (0, sign))
