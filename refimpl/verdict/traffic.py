"""Whether what a path sends is a local reduction's traffic: O(batch x tp_size) bytes, in a fixed number of collectives.

Works on runs made with ``count=True``. It needs several calls of one path, of different shapes, to tell growth.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import combinations

import numpy as np

from refimpl import bits
from refimpl.case import Call, Case
from refimpl.ranks.outcome import Run
from refimpl.vocab.layouts import even_layout

# A path may round what it sends up to whole blocks.
SLACK = 2


class Uncountable(Exception):
    """The path sends by means that torch's dispatcher does not see; nothing can be said of its traffic."""


def traffic(run: Run) -> list[tuple[int, int]]:
    """``(collectives, bytes)`` of each call, as rank 0 asked for them. Raises Uncountable."""
    sent = []
    for call in run.ranks[0].calls:
        seen = call.collectives or ()
        if not seen or call.issued > len(seen):
            more = f"the group counted {max(call.issued, 0)}"
            raise Uncountable(f"{len(seen)} collectives were seen, {more}: what the path sends cannot be counted")
        sent.append((len(seen), sum(size for _, size in seen)))
    return sent


def growth_over_shapes(case: Case, run: Run) -> str | None:
    """What is wrong with the growth over the calls of one case, or None. Raises Uncountable."""
    return growth([(call.batch, call.layout.vocab_size) for call in case.calls], traffic(run))


def plainest(case: Case, run: Run, ask: Callable[[Case], Run | None]) -> tuple[Case, Run, str]:
    """The smallest case found whose growth is wrong as well, with its run: two calls of zeros of a few ids, if they
    show it; two of the case's own; or the whole.

    ``ask``: a run that counts, None where the ranks do not come through. Raises Uncountable, and ValueError where
    nothing is wrong with the growth of ``case``.
    """
    for smaller in _smaller(case, run):
        counted = ask(smaller)
        if counted is None:
            continue
        with contextlib.suppress(Uncountable):  # of so few ids a path may send nothing; the case itself was counted
            wrong = growth_over_shapes(smaller, counted)
            if wrong:
                return smaller, counted, wrong
    wrong = growth_over_shapes(case, run)
    if wrong is None:
        raise ValueError("nothing is wrong with the growth of this case")
    return case, run, wrong


def _smaller(case: Case, run: Run) -> Iterator[Case]:
    dtype, tp_size = case.calls[0].dtype, case.tp_size
    few, twice = 2 * tp_size, 4 * tp_size
    for shapes in (((1, few), (1, twice)), ((2, few), (2, twice)), ((1, few), (2, few))):
        zeros = [np.zeros((batch, size), bits.STORAGE[dtype]) for batch, size in shapes]
        yield Case(tuple(Call(even_layout(rows.shape[1], tp_size), dtype, rows) for rows in zeros), case.bystanders)
    sent = traffic(run)
    for pair in sorted(combinations(range(len(case.calls)), 2), key=lambda pair: sum(_size(case, i) for i in pair)):
        calls = tuple(case.calls[index] for index in pair)
        if growth([(call.batch, call.layout.vocab_size) for call in calls], [sent[index] for index in pair]):
            yield Case(calls, case.bystanders)


def _size(case: Case, index: int) -> int:
    return case.calls[index].logits.size


def growth(shapes: list[tuple[int, int]], sent: list[tuple[int, int]]) -> str | None:
    """The same of ``(batch, vocabulary)`` and ``(collectives, bytes)`` of each call."""
    if len({collectives for collectives, _ in sent}) > 1:
        numbers = [f"{b} x {v}: {n}" for (b, v), (n, _) in zip(shapes, sent, strict=True)]
        return f"collectives by batch x vocabulary: {', '.join(numbers)}"
    for (batch, vocab), (_, size) in zip(shapes, sent, strict=True):
        for (other_batch, other_vocab), (_, other_size) in zip(shapes, sent, strict=True):
            if batch == other_batch and vocab < other_vocab and size < other_size:
                sizes = f"{size} bytes at {vocab} ids, {other_size} at {other_vocab}"
                return f"bytes grow with the vocabulary: at batch {batch} {sizes}"
            if vocab == other_vocab and 0 < batch < other_batch and other_size * batch > SLACK * size * other_batch:
                return f"bytes grow faster than the batch: {size} for {batch} rows, {other_size} for {other_batch}"
    return None


def growth_over_ranks(few: tuple[Case, Run], many: tuple[Case, Run]) -> str | None:
    """What is wrong with the growth from fewer to more ranks over the same rows, or None. Raises Uncountable."""
    (few_case, few_run), (many_case, many_run) = few, many
    few_bytes, many_bytes = (sum(size for _, size in traffic(run)) for run in (few_run, many_run))
    if few_case.tp_size * many_bytes > many_case.tp_size * SLACK * few_bytes:
        sizes = f"{few_bytes} bytes at tp_size {few_case.tp_size}, {many_bytes} at {many_case.tp_size}"
        return f"bytes grow faster than tp_size: {sizes}"
    return None
