"""The driver's side of live engines: what is installed, and orders to the ranks for one of both answers.

No engine is imported here. A rank that an input has killed is replaced before the next answer is asked for.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from refimpl import loading
from refimpl.engine_case import EngineCase
from refimpl.engines import EngineFacts, EngineUnusable
from refimpl.ranks.generations import RanksUnavailable, Spec
from refimpl.ranks.outcome import Run
from refimpl.ranks.runtime import Ranks

# The engine is imported by the rank itself where the fork server could not: its error comes that late.
_FACTS_SECONDS = 180.0


@dataclass(frozen=True, eq=False)
class BothAnswers:
    """Both runs of one case, and where both answered the argmax of the lm_head's own logits, with these logits.

    ``truth``: int64 ``(rows,)``; ``logits``: bit patterns ``(rows, vocab_size)``. None where the engine gave none.
    """

    full: Run
    local: Run
    truth: np.ndarray | None = None
    logits: np.ndarray | None = None


def engine_facts(ranks: Ranks, engine: str) -> EngineFacts:
    """Load the engine on one rank and ask what it is. Raises EngineUnusable, RanksUnavailable."""
    order = {"do": "engine", "op": "facts", "engine": engine}
    answer, _ = ranks.query(_spec(1), order, [], max(_FACTS_SECONDS, ranks.limit))[0]
    if "error" in answer:
        raise EngineUnusable(str(answer["error"]))
    return EngineFacts.from_plain(answer["facts"])


def _spec(tp_size: int) -> Spec:
    return Spec(loading.qualified(loading.REFERENCE), tp_size)


def ask(ranks: Ranks, case: EngineCase, op: str, *, count: bool = False, limit: float | None = None) -> Run:
    """One answer, ``op`` full or local, from every rank. Raises RanksUnavailable."""
    order, arrays = _order(case, op, count)
    _open(ranks, case)
    return ranks.run_orders(_spec(case.tp_size), [(order, arrays)] * case.tp_size, limit)


def _open(ranks: Ranks, case: EngineCase) -> None:
    """The engine's own group on fresh ranks. That it cannot be opened says nothing about a case."""
    spec = _spec(case.tp_size)
    ranks.facts(spec)
    if ranks.opened == (case.engine, spec, ranks.generations_started):
        return
    order = {"do": "engine", "op": "open", "engine": case.engine}
    for rank, (answer, _) in enumerate(ranks.query(spec, order, [], max(_FACTS_SECONDS, ranks.limit))):
        if "error" in answer:
            ranks.retire(spec)
            raise RanksUnavailable(f"rank {rank} could not open the group of {case.engine}: {answer['error']}")
    ranks.opened = (case.engine, spec, ranks.generations_started)


def both(ranks: Ranks, case: EngineCase, *, limit: float | None = None) -> BothAnswers:
    """Raises RanksUnavailable."""
    full = ask(ranks, case, "full", limit=limit)
    local = ask(ranks, case, "local", limit=limit)
    # A local reduction of the argmax views its pairs by two dimensions; other shapes are held against the full answer.
    has_logits = not case.options.logits_as_input and (case.hidden_states.ndim == 2 or case.options.k is not None)
    if not has_logits or not (full.complete and local.complete):
        return BothAnswers(full, local)
    run = ask(ranks, case, "logits", limit=limit)
    if not run.complete:
        return BothAnswers(full, local)
    outcome = run.ranks[0].calls[0]
    return BothAnswers(full, local, outcome.truth, outcome.logits)


def _order(case: EngineCase, op: str, count: bool) -> tuple[dict[str, Any], list[np.ndarray]]:
    arrays = [np.ascontiguousarray(case.weight), np.ascontiguousarray(case.hidden_states)]
    order: dict[str, Any] = {
        "do": "engine",
        "op": op,
        "engine": case.engine,
        "tp_size": case.tp_size,
        "options": asdict(case.options),
        "digest": case.digest,
        "count": count,
    }
    for name, array in (("bias", case.bias), ("d2t", case.d2t)):
        order[name] = None if array is None else len(arrays)
        if array is not None:
            arrays.append(array)
    return order, arrays
