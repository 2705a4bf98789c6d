"""A top-k case: calls of one path, each with its k, and how the ranks are asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from refimpl import loading
from refimpl.case import Call, Case
from refimpl.ranks.outcome import Run
from refimpl.ranks.runtime import Ranks, Spec


@dataclass(frozen=True, eq=False)
class TopKCall:
    """One call: logits and layout as of any case, and k."""

    call: Call
    k: int

    def rows(self, index: Any) -> TopKCall:
        return replace(self, call=self.call.rows(index))


@dataclass(frozen=True, eq=False)
class TopKCase:
    """Calls made one after the other by ranks of one generation, all of one tp_size."""

    calls: tuple[TopKCall, ...]

    @property
    def tp_size(self) -> int:
        return self.plain.tp_size

    @property
    def plain(self) -> Case:
        """The calls without their k: what the journal holds."""
        return Case(tuple(entry.call for entry in self.calls))


def run(ranks: Ranks, case: TopKCase, path: str, *, count: bool = False, limit: float | None = None) -> Run:
    """What the ranks do with a case. Raises RanksUnavailable, PathUnusable.

    Of each call ``reference`` and ``tokens`` are int64 ``(2, batch, k)``: ids, and the values' bit patterns.
    """

    def orders() -> Iterator[tuple[dict[str, Any], list[np.ndarray]]]:
        for rank in range(case.tp_size):
            calls: list[dict[str, Any]] = []
            arrays: list[np.ndarray] = []
            for entry in case.calls:
                call = entry.call
                head: dict[str, Any] = {"bounds": call.layout.bounds, "padded_size": call.layout.padded_size}
                head |= {"dtype": call.dtype, "k": entry.k, "logits": len(arrays), "d2t": None}
                arrays.append(call.local_logits(rank))
                if call.d2t is not None:
                    head["d2t"] = len(arrays)
                    arrays.append(call.d2t)
                calls.append(head)
            yield {"do": "topk", "calls": calls, "count": count}, arrays

    return ranks.run_orders(Spec(loading.qualified(path), case.tp_size), orders(), limit)
