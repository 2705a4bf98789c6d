"""The executor's part in top-k: the reference and the path under test on every call of a case."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from refimpl.contract import UnsupportedInput
from refimpl.ranks import subnormals
from refimpl.ranks.answers import Answer
from refimpl.ranks.counting import CollectiveCounter
from refimpl.topk.full_gather_topk import full_gather_topk

if TYPE_CHECKING:
    from refimpl.ranks.executor import Executor


def answer(executor: Executor, order: dict[str, Any], arrays: list[np.ndarray]) -> Answer:
    """Outcomes as of any case, but that ``reference``, ``tokens`` and ``overwritten`` are int64 ``(2, batch, k)``: ids,
    and the values' bit patterns."""
    try:
        return _run(executor, order, arrays)
    except Exception:
        # Ours, not the path's: the driver calls it unknown.
        return {"event": "broken", "error": traceback.format_exc(limit=8)}, []


def _run(executor: Executor, order: dict[str, Any], arrays: list[np.ndarray]) -> Answer:
    outcomes: list[dict[str, Any]] = []
    results: list[np.ndarray] = []
    returned: list[tuple[dict[str, Any], Any, np.ndarray]] = []
    for call in order["calls"]:
        shard, k = executor.shard(call), call["k"]
        given = executor.tensor(arrays[call["logits"]], call["dtype"])
        table = None if call["d2t"] is None else torch.from_numpy(arrays[call["d2t"]])
        d2t = None if table is None else table.clone().to(executor.device)
        outcome: dict[str, Any] = {}
        outcomes.append(outcome)
        try:
            with subnormals.kept():
                reference = full_gather_topk(given, shard, executor.reference_group, k, d2t)
            outcome["reference"] = len(results)
            results.append(_as_words(reference))
        except UnsupportedInput:
            pass  # no such k: the path must refuse it too, which the judge sees
        local_logits = given.clone()
        counter = CollectiveCounter()
        own_call = partial(executor.path, local_logits, shard, executor.group, k, d2t)
        got = executor.own_answer(
            partial(_counted, counter, own_call) if order["count"] else own_call,
            partial(_wrong_form, given, k),
            outcome,
        )
        if outcome["status"] in ("answered", "wrong form"):
            outcome["collectives"] = counter.seen if order["count"] else None
            outcome["modified"] = executor.first_change(given, local_logits, shard.num_real)
            outcome["table_modified"] = d2t is not None and table is not None and not torch.equal(d2t.cpu(), table)
        if outcome["status"] == "refused":
            continue  # the group is untouched: the next call may be asked
        if got is None:
            break
        kept = _as_words(got)
        outcome["tokens"] = len(results)
        results.append(kept)
        returned.append((outcome, got, kept))
        local_logits.zero_()  # an engine uses this memory again; a result must not lie in it
    for outcome, got, kept in returned:
        later = _as_words(got)
        if not np.array_equal(later, kept):
            outcome["overwritten"] = len(results)
            results.append(later)
    return {"event": "done", "calls": outcomes}, results


def _counted(counter: CollectiveCounter, own_call: Callable[[], Any]) -> Any:
    with counter:
        return own_call()


def _as_words(pair: Any) -> np.ndarray:
    values, ids = (part.detach().contiguous().cpu() for part in pair)
    patterns = values.view(torch.int32 if values.element_size() == 4 else torch.int16).numpy()
    unsigned = patterns.view(np.uint32 if values.element_size() == 4 else np.uint16)
    return np.stack([ids.numpy().copy(), unsigned.astype(np.int64)])


def _wrong_form(given: torch.Tensor, k: int, got: Any) -> str | None:
    """What keeps a result from being the contract's pair of ``(batch, k)`` tensors."""
    if not isinstance(got, (tuple, list)) or len(got) != 2 or not all(isinstance(part, torch.Tensor) for part in got):
        return f"returned a {type(got).__name__}, expected a pair of tensors: values and ids"
    shape = (given.shape[0], k)
    for name, part, dtype in (("values", got[0], given.dtype), ("ids", got[1], torch.int64)):
        if part.dtype != dtype or tuple(part.shape) != shape:
            words = f"{str(part.dtype).removeprefix('torch.')} of shape {tuple(part.shape)}"
            return f"returned {name} as {words}, expected {str(dtype).removeprefix('torch.')} of shape {shape}"
        if part.device != given.device:
            return f"returned {name} on {part.device}, expected {given.device}"
    return None
