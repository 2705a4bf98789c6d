"""The driver's side of heads: their facts, and orders to the ranks that start from hidden states.

No head is imported here. What the driver knows of one, the ranks told it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from refimpl import loading
from refimpl.case import Call, Case
from refimpl.draft_case import DraftCase
from refimpl.head_case import HeadCase, HeadRef
from refimpl.heads import HeadError
from refimpl.ranks.generations import RanksUnavailable, Spec
from refimpl.ranks.outcome import Run
from refimpl.ranks.runtime import Ranks
from refimpl.vocab.d2t import TableReport, check_table
from refimpl.vocab.layouts import Layout

OWN = "own"  # in the place of a path's name: the head answers for its own reduction
# Weights are drawn, or read, and several variants of them multiplied: more than a case of given logits takes.
_QUERY_SECONDS = 300.0
# Of a busy CPU; a matrix product of a real head's size is no hang.
_SECONDS_PER_PRODUCT = 1e-9
# Through the head, of each row of a drafting loop: both answers draft, and what each drafted is verified.
_PASSES = 4


@dataclass(frozen=True, eq=False)
class HeadFacts:
    """What the ranks told of a head. ``layouts``: by tp_size, a sentence where the head has none."""

    ref: HeadRef
    figures: dict[str, Any]
    own_tokens: bool
    num_logits: int
    input_size: int
    logits_dtype: str
    weight_bytes: int
    layouts: dict[int, Layout | str]
    d2t: np.ndarray | None
    source: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        return self.ref.name

    @property
    def hidden_size(self) -> int:
        return int(self.figures["hidden_size"])

    @property
    def dtype(self) -> str:
        return str(self.figures["dtype"])

    @property
    def steps(self) -> int:
        return int(self.figures["steps"])

    @property
    def has_weights(self) -> bool:
        return bool(self.figures["has_weights"])

    @property
    def starts_from_hidden_states(self) -> bool:
        return self.has_weights or self.own_tokens

    @cached_property
    def table_report(self) -> TableReport | None:
        return None if self.d2t is None else check_table(self.d2t, self.num_logits, int(self.figures["vocab_size"]))

    @property
    def has_rising_table(self) -> bool:
        return self.table_report is None or self.table_report.is_rising

    @property
    def bad_table(self) -> str | None:
        """What makes the head's table unusable."""
        fault = self.figures.get("table_fault")  # a checkpoint's, with its likely mistakes by name
        if fault is not None:
            return str(fault)
        report = self.table_report
        return report.errors[0] if report is not None and report.errors else None

    def layout(self, tp_size: int) -> Layout:
        """Raises HeadError where the head has no layout at this tp_size."""
        layout = self.layouts[tp_size]
        if isinstance(layout, str):
            raise HeadError(f"head {self.name} at tp_size {tp_size}: {layout}")
        return layout


def facts_of(ranks: Ranks, ref: HeadRef, tp_sizes: Iterable[int]) -> HeadFacts:
    """Load a head on one rank and ask it for its figures. Raises HeadError, RanksUnavailable."""
    spec = Spec(loading.qualified(loading.REFERENCE), 1)
    sizes = sorted({1, *tp_sizes})
    order = {**_order(ref, "facts"), "tp_sizes": sizes}
    ranks.facts(spec)  # ranks that do not start are no fault of the head's
    try:
        answer, arrays = ranks.query(spec, order, [], ranks.limit * 6)[0]
    except RanksUnavailable as error:
        raise HeadError(f"{error} while the head was loaded") from error
    if "error" in answer:
        raise HeadError(str(answer["error"]))
    layouts: dict[int, Layout | str] = {}
    for size, told in answer["layouts"].items():
        if "error" in told:
            layouts[int(size)] = told["error"]
            continue
        bounds = tuple((int(start), int(end)) for start, end in told["bounds"])
        layouts[int(size)] = Layout(bounds, int(told["padded_size"]))
        if bounds[-1][1] != answer["num_logits"] or len(bounds) != int(size):
            raise HeadError(
                f"layout({size}) covers {bounds[-1][1]} columns in {len(bounds)} shards; it must cover "
                f"{answer['num_logits']} in {size}"
            )
    return HeadFacts(
        ref=ref,
        figures=answer["figures"],
        own_tokens=answer["own_tokens"],
        num_logits=answer["num_logits"],
        input_size=answer["input_size"],
        logits_dtype=answer["logits_dtype"],
        weight_bytes=answer["weight_bytes"],
        layouts=layouts,
        d2t=arrays[0] if answer["has_table"] else None,
        source=answer.get("source"),
    )


def _order(ref: HeadRef, op: str) -> dict[str, Any]:
    return {"do": "head", "op": op, "head": ref.name, "most_bytes": ref.most_bytes}


def _case_order(case: HeadCase, op: str) -> dict[str, Any]:
    return {
        **_order(case.head, op),
        "bounds": case.layout.bounds,
        "padded_size": case.layout.padded_size,
        "dtype": case.dtype,
        "spec_step_idx": case.spec_step_idx,
    }


class HeadRanks:
    """One head and one path on the ranks of one tp_size. ``path``: `OWN` for a head with answers of its own."""

    def __init__(self, ranks: Ranks, path: str, facts: HeadFacts, tp_size: int) -> None:
        self._ranks = ranks
        self.facts = facts
        self.tp_size = tp_size
        self._spec = Spec(loading.qualified(loading.REFERENCE if path == OWN else path), tp_size)

    def run(self, case: HeadCase, limit: float | None = None) -> Run:
        """Both answers to a case. Raises RanksUnavailable, PathUnusable."""
        order = _case_order(case, "run")
        products = case.num_rows * self.facts.num_logits * self.facts.hidden_size
        limit = (self._ranks.limit if limit is None else limit) + _SECONDS_PER_PRODUCT * products
        return self._ranks.run_orders(self._spec, [(order, [case.hidden_states])] * self.tp_size, limit)

    def rows(self, ids: np.ndarray, spec_step_idx: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows of a projection, float32 ``(n, hidden_size)``, and the gain of the norm before it ``(hidden_size,)``."""
        order = {**_order(self.facts.ref, "rows"), "spec_step_idx": spec_step_idx}
        rows, gain = self._ask(order, [ids.astype(np.int64)])[0][1]
        return rows, gain

    def given(self, case: HeadCase, rows: list[int]) -> Case:
        """The reference's logits of some rows, made with the whole batch, as a case of given logits."""
        chosen = np.array(rows, np.int64)
        order = _case_order(case, "logits")
        parts = [arrays[0] for _, arrays in self._ask(order, [case.hidden_states, chosen])]
        if self.facts.own_tokens:
            logits = parts[0]
        else:
            bounds = case.layout.bounds
            logits = np.concatenate(
                [part[:, : end - start] for part, (start, end) in zip(parts, bounds, strict=True)], 1
            )
        return Case((Call(case.layout, self.facts.logits_dtype, np.ascontiguousarray(logits), (0,), self.facts.d2t),))

    def variants(self, case: HeadCase, only: tuple[str, ...] | None = None) -> dict[str, np.ndarray]:
        """What the rows give by every variant of the head: ``(2, batch)``, tokens and draft ids; "" is the head."""
        order = {**_case_order(case, "variants"), "only": None if only is None else list(only)}
        answer, arrays = self._ask(order, [case.hidden_states])[0]
        return dict(zip(answer["variants"], arrays, strict=True))

    def draft(self, case: DraftCase, limit: float | None = None) -> Run:
        """Both drafting loops, see `refimpl.ranks.drafting`. Raises RanksUnavailable, PathUnusable."""
        order = {
            **_order(case.head, "draft"),
            "bounds": case.layout.bounds,
            "padded_size": case.layout.padded_size,
            "sequences": list(case.sequences),
            "steps": case.steps,
            "seed": case.seed,
        }
        products = _PASSES * case.num_rows * self.facts.num_logits * self.facts.hidden_size
        limit = (self._ranks.limit if limit is None else limit) + _SECONDS_PER_PRODUCT * products
        return self._ranks.run_orders(self._spec, [(order, [])] * self.tp_size, limit)

    def _ask(self, order: dict[str, Any], arrays: list[np.ndarray]) -> list[tuple[dict[str, Any], list[np.ndarray]]]:
        answers = self._ranks.query(self._spec, order, arrays, max(_QUERY_SECONDS, self._ranks.limit))
        for rank, (answer, _) in enumerate(answers):
            if "error" in answer:
                self._ranks.retire(self._spec)
                raise RanksUnavailable(f"head {self.facts.name} on rank {rank}: {answer['error']}")
        return answers
