"""Cuts a failing top-k case down: calls, rows, columns, k, padding, the table, values. The kind must stay."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from refimpl import bits
from refimpl.case import Call
from refimpl.ranks.outcome import Run
from refimpl.ranks.runtime import Ranks
from refimpl.topk.case import TopKCall, TopKCase, run
from refimpl.topk.judge import TopKFinding, judge
from refimpl.vocab.d2t import offsets, targets
from refimpl.vocab.layouts import Layout


@dataclass(frozen=True)
class TopKCounterexample:
    case: TopKCase
    finding: TopKFinding
    run: Run


def reduce_failure(
    ranks: Ranks, path: str, first: TopKCounterexample, budget_seconds: float = 10.0, limit: float | None = None
) -> TopKCounterexample:
    """The smallest case found in the time given that still fails by the same kind."""
    until = time.monotonic() + budget_seconds
    best = first

    def still_fails(case: TopKCase) -> TopKCounterexample | None:
        outcome = run(ranks, case, path, limit=limit)
        for finding in judge(case, outcome).findings:
            if finding.kind == first.finding.kind:
                return TopKCounterexample(case, finding, outcome)
        return None

    smaller = True
    while smaller and time.monotonic() < until:
        smaller = False
        for step in _STEPS:
            took = True
            while took and time.monotonic() < until:
                took = False
                for candidate in step(best):
                    found = still_fails(candidate) if time.monotonic() < until else None
                    if found is not None:
                        best, took, smaller = found, True, True
                        break
    return best


def _with(case: TopKCase, index: int, entry: TopKCall) -> TopKCase:
    return TopKCase(tuple(entry if place == index else other for place, other in enumerate(case.calls)))


def _fewer_calls(best: TopKCounterexample) -> Iterator[TopKCase]:
    calls = best.case.calls
    if len(calls) > 1:
        yield TopKCase((calls[best.finding.call],))
        for index in range(len(calls)):
            yield TopKCase(calls[:index] + calls[index + 1 :])


def _each(change: Callable[[TopKCall, TopKCounterexample], Iterator[TopKCall]]) -> Callable[..., Iterator[TopKCase]]:
    """A step that changes one call of the case."""

    def step(best: TopKCounterexample) -> Iterator[TopKCase]:
        for index, entry in enumerate(best.case.calls):
            for smaller in change(entry, best):
                yield _with(best.case, index, smaller)

    return step


def _fewer_rows(entry: TopKCall, best: TopKCounterexample) -> Iterator[TopKCall]:
    batch = entry.call.batch
    if batch > 1:
        if best.finding.rows and best.finding.rows[0] < batch:
            yield entry.rows([best.finding.rows[0]])
        yield entry.rows([0])
        yield entry.rows(slice(0, batch // 2))
        yield entry.rows(slice(batch // 2, batch))


def _fewer_rows_everywhere(best: TopKCounterexample) -> Iterator[TopKCase]:
    """What one call leaves behind for another shows only where their shapes go together."""
    most = max(entry.call.batch for entry in best.case.calls)
    if len(best.case.calls) > 1 and most > 1:
        for size in sorted({1, 2, most // 2}):
            if size < most:
                yield TopKCase(tuple(entry.rows(slice(0, size)) for entry in best.case.calls))


def _keep_columns(entry: TopKCall, kept: np.ndarray) -> TopKCall | None:
    """The same call over some of its columns; None where none is left."""
    call, layout = entry.call, entry.call.layout
    if not len(kept):
        return None
    cuts = [0, *(int((kept < end).sum()) for _, end in layout.bounds)]
    bounds = tuple(pairwise(cuts))
    widest = max(end - start for start, end in bounds)
    spare = layout.padded_size - max(end - start for start, end in layout.bounds)
    d2t = None
    if call.d2t is not None:
        d2t = offsets(np.unique(targets(call.d2t)[kept], return_inverse=True)[1])
    logits = np.ascontiguousarray(call.logits[:, kept])
    smaller = Call(Layout(bounds, max(1, widest + spare)), call.dtype, logits, call.padding, d2t)
    return TopKCall(smaller, min(entry.k, len(kept)) if entry.k <= layout.vocab_size else len(kept) + 1)


def _fewer_columns(entry: TopKCall, _: TopKCounterexample) -> Iterator[TopKCall]:
    columns = np.arange(entry.call.layout.vocab_size)
    size = len(columns) // 2
    while size:
        for start in range(0, len(columns), size):
            smaller = _keep_columns(entry, np.delete(columns, np.s_[start : start + size]))
            if smaller is not None:
                yield smaller
        size //= 2
        if len(columns) > 64 and size < 4:
            return


def _smaller_k(entry: TopKCall, best: TopKCounterexample) -> Iterator[TopKCall]:
    if 1 < entry.k <= entry.call.layout.vocab_size:
        for k in sorted({1, best.finding.place + 1, entry.k // 2, entry.k - 1}):
            if 0 < k < entry.k:
                yield replace(entry, k=k)


def _less_padding(entry: TopKCall, _: TopKCounterexample) -> Iterator[TopKCall]:
    layout = entry.call.layout
    widest = max(1, *(end - start for start, end in layout.bounds))
    for size in sorted({widest, (layout.padded_size + widest) // 2}):
        if size < layout.padded_size:
            yield replace(entry, call=replace(entry.call, layout=Layout(layout.bounds, size)))
    zero, neg_inf = 0, bits.neg_inf(entry.call.dtype)
    for padding in ((neg_inf,), (zero,)):
        if any(entry.call.num_padding) and entry.call.padding not in ((neg_inf,), (zero,)):
            yield replace(entry, call=replace(entry.call, padding=padding))


def _no_table(entry: TopKCall, _: TopKCounterexample) -> Iterator[TopKCall]:
    if entry.call.d2t is not None:
        yield replace(entry, call=replace(entry.call, d2t=None))


def _small_values(entry: TopKCall, _: TopKCounterexample) -> Iterator[TopKCall]:
    """Numbers to their rank among the row's numbers; NaN, infinities and zeros stay."""
    call = entry.call
    values = call.values()
    finite = np.isfinite(values) & (values != 0)
    if not finite.any():
        return
    negative = np.unique(values[finite & (values < 0)])
    positive = np.unique(values[finite & (values > 0)])
    ranked = np.where(
        values < 0, np.searchsorted(negative, values) - len(negative), np.searchsorted(positive, values) + 1
    )
    logits = np.where(finite, bits.encode(ranked.astype(np.float64), call.dtype), call.logits)
    if not np.array_equal(logits, call.logits):
        yield replace(entry, call=replace(call, logits=logits.astype(call.logits.dtype)))


_STEPS = (
    _fewer_calls,
    _fewer_rows_everywhere,
    _each(_fewer_rows),
    _each(_no_table),
    _each(_fewer_columns),
    _each(_smaller_k),
    _each(_less_padding),
    _each(_small_values),
)
