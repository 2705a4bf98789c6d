"""What an executor does with a live engine: it loads its adapter and runs one of both answers of a case at a time.

One at a time, because an input may end the process: who asked for what is known then. The adapter and the engine are
code under test; whatever they raise is an outcome.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from refimpl import engines
from refimpl.contract import UnsupportedInput
from refimpl.engine_case import EngineCase, EngineOptions
from refimpl.head import Head
from refimpl.ranks import answers, drafting
from refimpl.ranks.answers import Answer
from refimpl.ranks.counting import CollectiveCounter

if TYPE_CHECKING:
    from refimpl.ranks.executor import Executor


class EngineExecutor:
    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._built: tuple[str, Head] | None = None

    def answer(self, order: dict[str, Any], arrays: list[np.ndarray]) -> Answer:
        if order["op"] in ("facts", "open"):
            try:
                adapter = engines.load(order["engine"])
                if order["op"] == "facts":
                    return {"event": "answer", "facts": adapter.facts().plain()}, []
                adapter.open_group(self._executor.group)
                return {"event": "answer"}, []
            except engines.EngineUnusable as error:
                return {"event": "answer", "error": str(error)}, []
            except BaseException as error:
                return {
                    "event": "answer",
                    "error": f"its adapter raised {type(error).__name__}: {answers.words(error)}",
                }, []
        return self._run(order, arrays)

    def _run(self, order: dict[str, Any], arrays: list[np.ndarray]) -> Answer:
        outcome: dict[str, Any] = {}
        results: list[np.ndarray] = []
        try:
            case = _case(order, arrays)
            head = self._head(case, order["digest"])
            hidden = self._tensor(case.hidden_states, case.options.dtype)
            if order["op"] == "logits":
                logits = head.full_logits(hidden, self._executor.reference_group)
                truth = head.argmax(logits)
                results += [truth.cpu().numpy(), drafting.patterns(logits)]
                outcome |= {"status": "answered", "issued": 0, "tokens": 0, "truth": 0, "logits": 1}
            else:
                ask = head.full_tokens if order["op"] == "full" else head.local_tokens
                counter = CollectiveCounter(*engines.load(case.engine).COLLECTIVES) if order["count"] else None
                if counter is None:
                    tokens: Any = ask(hidden, self._executor.group)
                else:
                    with counter:
                        tokens = ask(hidden, self._executor.group)
                wrong = answers.wrong_form(tokens, tuple(hidden.shape[:-1]), hidden.device)
                if wrong:
                    outcome |= {"status": "wrong form", "message": wrong}
                else:
                    results.append(tokens.detach().cpu().numpy().reshape(-1).copy())
                    seen = None if counter is None else counter.seen
                    outcome |= {"status": "answered", "issued": 0, "tokens": 0, "collectives": seen}
        except UnsupportedInput as refusal:
            outcome |= answers.refused(refusal)
        except BaseException as error:
            outcome |= answers.raised(error)
        return {"event": "done", "calls": [outcome]}, results

    def _head(self, case: EngineCase, digest: str) -> Head:
        """Both answers of a case come from the same objects of the engine."""
        if self._built is None or self._built[0] != digest:
            weight = self._tensor(case.weight, case.options.dtype)
            bias = None if case.bias is None else self._tensor(case.bias, case.options.dtype)
            self._built = digest, engines.load(case.engine).head(case, weight, bias)
        return self._built[1]

    def _tensor(self, patterns: np.ndarray, dtype: str) -> torch.Tensor:
        return self._executor.tensor(patterns, dtype).clone()


def _case(order: dict[str, Any], arrays: list[np.ndarray]) -> EngineCase:
    bias, d2t = order["bias"], order["d2t"]
    return EngineCase(
        engine=order["engine"],
        tp_size=order["tp_size"],
        options=EngineOptions(**order["options"]),
        weight=arrays[0],
        hidden_states=arrays[1],
        bias=None if bias is None else arrays[bias],
        d2t=None if d2t is None else arrays[d2t],
    )
