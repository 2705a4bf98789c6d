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
                ask = _asked(head, case, order["op"])
                counter = CollectiveCounter(*engines.load(case.engine).COLLECTIVES) if order["count"] else None
                if counter is None:
                    tokens: Any = ask(hidden, self._executor.group)
                else:
                    with counter:
                        tokens = ask(hidden, self._executor.group)
                shape = tuple(hidden.shape[:-1])
                if case.options.k is None:
                    wrong = answers.wrong_form(tokens, shape, hidden.device)
                else:
                    wrong = answers.wrong_pair(tokens, (*shape, case.options.k), hidden.device)
                if wrong:
                    outcome |= {"status": "wrong form", "message": wrong}
                else:
                    results.append(_kept(tokens, case.options.k))
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


def _asked(head: Any, case: EngineCase, op: str) -> Any:
    """What the head is asked for: tokens, or with a k values and ids."""
    k, log_probs = case.options.k, case.options.log_probs
    if k is None:
        return head.full_tokens if op == "full" else head.local_tokens
    ask = head.full_topk if op == "full" else head.local_topk
    return lambda hidden, group: ask(hidden, k, group, log_probs=log_probs)


def _kept(answer: Any, k: int | None) -> np.ndarray:
    """int64 ``(rows,)`` tokens; of values and ids int64 ``(2, rows, k)``, ids and the patterns of float32 values."""
    if k is None:
        tokens: np.ndarray = answer.detach().cpu().numpy().reshape(-1).copy()
        return tokens
    values, ids = (part.detach().cpu().reshape(-1, k).contiguous() for part in answer)
    return np.stack([ids.numpy().copy(), values.float().numpy().view(np.uint32).astype(np.int64)])


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
