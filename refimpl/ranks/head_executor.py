"""What an executor does with heads: it loads them, tells their facts, and runs both answers from hidden states.

The head's file is the user's code, as a path is: whatever it raises is an outcome, and none of it reaches the driver.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from refimpl import heads, loading
from refimpl.contract import UnsupportedInput, VocabShard
from refimpl.head import Head
from refimpl.paths.collectives import all_gather
from refimpl.paths.full_gather import full_gather
from refimpl.ranks import answers, drafting
from refimpl.ranks.answers import Answer
from refimpl.ranks.outcome import NAN_ROW, NEG_INF_ROW
from refimpl.ranks.source import source_of

if TYPE_CHECKING:
    from refimpl.ranks.executor import Executor


class HeadExecutor:
    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._heads: dict[tuple[str, int | None], Head] = {}

    def answer(self, order: dict[str, Any], arrays: list[np.ndarray]) -> Answer:
        if order["op"] == "run":
            return self._run(order, arrays)
        if order["op"] == "draft":
            return self._draft(order)
        ask = {"facts": self._facts, "rows": self._rows, "logits": self._logits, "variants": self._variants}
        try:
            return ask[order["op"]](order, arrays)
        except (loading.LoadError, heads.HeadError) as error:
            return {"event": "answer", "error": str(error)}, []
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{where.filename}:{where.lineno}"
            said = f"it raised {type(error).__name__} in {where.name} ({place}): {answers.words(error)}"
            return {"event": "answer", "error": said}, []

    # -- what is asked of a head ------------------------------------------------------------------------

    def _head(self, order: dict[str, Any]) -> Head:
        key = order["head"], order["most_bytes"]
        if key not in self._heads:
            self._heads.clear()  # one head's weights at a time
            self._heads[key] = heads.load(key[0]).within(key[1])
        return self._heads[key]

    def _facts(self, order: dict[str, Any], arrays: list[np.ndarray]) -> Answer:
        """Everything the driver knows of a head. Its own methods run here for the first time."""
        head = self._head(order)
        layouts: dict[str, Any] = {}
        for tp_size in order["tp_sizes"]:
            try:
                layout = head.layout(tp_size)
                layouts[str(tp_size)] = {"bounds": layout.bounds, "padded_size": layout.padded_size}
            except ValueError as error:
                layouts[str(tp_size)] = {"error": str(error)}
        d2t = head.d2t()
        if d2t is not None and not isinstance(d2t, np.ndarray):
            raise heads.HeadError(f"d2t() returned a {type(d2t).__name__}; it must be an int64 NumPy array of offsets")
        # A checkpoint's head overrides d2t() and gives none where its table is refuted, which has a verdict of its own.
        is_forgotten = type(head).d2t is Head.d2t and not head.gives_own_tokens
        if is_forgotten and head.num_logits < head.vocab_size:
            raise heads.HeadError(
                f"draft_vocab_size {head.num_logits} is less than vocab_size {head.vocab_size}, and d2t() gives no "
                "table; override it, or draft ids would be taken for target ids"
            )
        facts = {
            "event": "answer",
            "figures": head.figures(),
            "own_tokens": head.gives_own_tokens,
            "num_logits": head.num_logits,
            "input_size": head.input_size,
            "logits_dtype": head.logits_dtype,
            "weight_bytes": head.weight_bytes,
            "layouts": layouts,
            "has_table": d2t is not None,
            "source": source_of(heads.reference_of(order["head"])),
        }
        return facts, [] if d2t is None else [np.ascontiguousarray(d2t)]

    def _rows(self, order: dict[str, Any], arrays: list[np.ndarray]) -> Answer:
        """Single rows of a projection as float32, and the gain of the norm before it."""
        head, step = self._head(order), order["spec_step_idx"]
        rows = torch.cat([head.weight_rows(int(row), int(row) + 1, step) for row in arrays[0]]).float()
        gain = head.norm_weight(step).float() if head.norm else torch.ones(head.hidden_size)
        return {"event": "answer"}, [rows.cpu().numpy(), gain.cpu().numpy()]

    def _logits(self, order: dict[str, Any], arrays: list[np.ndarray]) -> Answer:
        """Logits of chosen rows, made with the whole batch: all, where the head answers for itself, else a shard's."""
        head = self._head(order)
        hidden = self._hidden(order, arrays[0])
        step = order["spec_step_idx"]
        if head.gives_own_tokens:
            logits = head.full_logits(hidden, self._executor.reference_group, step)
        else:
            shard = self._executor.shard(order)
            logits = head.local_logits(hidden, shard, step)
        return {"event": "answer"}, [drafting.patterns(logits[torch.from_numpy(arrays[1]).to(logits.device)])]

    def _variants(self, order: dict[str, Any], arrays: list[np.ndarray]) -> Answer:
        """Draft ids of every variant's logits, ties by target id and by draft id: ``(2, batch)`` each."""
        head = self._head(order)
        shard = self._executor.shard(order)
        hidden = self._hidden(order, arrays[0])
        group = self._executor.reference_group
        d2t = head.table(hidden.device)
        names, results = [], []
        for name, logits_of in {"": head.local_logits, **head.variants()}.items():
            if order["only"] is not None and name not in order["only"]:
                continue
            logits = logits_of(hidden.clone(), shard, order["spec_step_idx"])
            draft_ids = full_gather(logits, shard, group, None)
            tokens = draft_ids if d2t is None else full_gather(logits, shard, group, d2t)
            names.append(name)
            results.append(torch.stack([tokens, draft_ids]).cpu().numpy())
        return {"event": "answer", "variants": names}, results

    # -- both answers ------------------------------------------------------------------------------------

    def _hidden(self, order: dict[str, Any], patterns: np.ndarray) -> torch.Tensor:
        return self._executor.tensor(patterns, order["dtype"])

    def _run(self, order: dict[str, Any], arrays: list[np.ndarray]) -> Answer:
        outcome: dict[str, Any] = {}
        results: list[np.ndarray] = []

        def put(name: str, tensor: torch.Tensor) -> None:
            outcome[name] = len(results)
            results.append(tensor.detach().cpu().numpy().copy())

        try:
            head = self._head(order)
            hidden = self._hidden(order, arrays[0])
            if head.gives_own_tokens:
                self._both_of_the_head(head, hidden, order, outcome, put)
            else:
                self._both_of_a_path(head, hidden, order, outcome, put)
        except UnsupportedInput as refusal:
            outcome |= answers.refused(refusal)
        except BaseException as error:
            outcome |= answers.raised(error)
        return {"event": "done", "calls": [outcome]}, results

    def _both_of_a_path(
        self, head: Head, hidden: torch.Tensor, order: dict[str, Any], outcome: dict[str, Any], put: Any
    ) -> None:
        shard, step = self._executor.shard(order), order["spec_step_idx"]
        given = head.local_logits(hidden.clone(), shard, step)
        wrong = _wrong_logits(given, hidden, shard)
        if wrong:
            raise TypeError(f"local_logits {wrong}")
        d2t = head.table(hidden.device)
        put("reference", self._executor.run_reference(given, shard, d2t))
        put("ties", self.ties(given, shard))
        anew = head.local_logits(hidden.clone(), shard, step)
        outcome["logits_differ"] = self._executor.first_change(given, anew, shard.num_real)
        table = None if d2t is None else d2t.cpu()
        tokens = self._executor.one_call(anew.clone(), anew, shard, table, outcome, False, None)
        if tokens is not None:
            put("tokens", tokens)

    def _both_of_the_head(
        self, head: Head, hidden: torch.Tensor, order: dict[str, Any], outcome: dict[str, Any], put: Any
    ) -> None:
        executor, step = self._executor, order["spec_step_idx"]
        put("reference", head.full_tokens(hidden.clone(), executor.reference_group, step))
        if head.has_weights:
            logits = head.full_logits(hidden.clone(), executor.reference_group, step)
            put("truth", head.argmax(logits))
            put("ties", _ties_of_rows(logits, head.shard(executor.reference_group)))
        tokens = executor.own_call(lambda: head.local_tokens(hidden.clone(), executor.group, step), hidden, outcome)
        if tokens is not None:
            put("tokens", tokens)

    def ties(self, logits: torch.Tensor, shard: VocabShard) -> torch.Tensor:
        """int64 ``(batch, 3)``: how many columns tie at the top, over how many shards, and what the row holds."""
        real = logits[:, : shard.num_real].float()
        group = self._executor.reference_group
        top = real.amax(dim=1) if shard.num_real else real.new_full((len(real),), -torch.inf)
        top = all_gather(top, group).amax(dim=0)
        counts = torch.where(top.isnan(), real.isnan().sum(dim=1), (real == top[:, None]).sum(dim=1))
        every = all_gather(counts, group)
        holds = top.isnan() * NAN_ROW + (top == -torch.inf) * NEG_INF_ROW
        return torch.stack([every.sum(dim=0), (every > 0).sum(dim=0), holds], dim=1)

    def _draft(self, order: dict[str, Any]) -> Answer:
        try:
            return drafting.draft(self._executor, self._head(order), order)
        except BaseException as error:  # of the head, as it was loaded
            return {"event": "done", "calls": [answers.raised(error)]}, []


def _ties_of_rows(logits: torch.Tensor, shard: VocabShard) -> torch.Tensor:
    """The same of whole rows ``(batch, num_logits)``."""
    values = logits.float()
    top = values.amax(dim=1)
    tied = torch.where(top.isnan()[:, None], values.isnan(), values == top[:, None])
    shards = torch.stack([tied[:, start:end].any(dim=1) for start, end in shard.bounds]).sum(dim=0)
    holds = top.isnan() * NAN_ROW + (top == -torch.inf) * NEG_INF_ROW
    return torch.stack([tied.sum(dim=1), shards, holds], dim=1)


def _wrong_logits(logits: Any, hidden: torch.Tensor, shard: VocabShard) -> str | None:
    expected = (hidden.shape[0], shard.padded_size)
    if not isinstance(logits, torch.Tensor):
        return f"returned a {type(logits).__name__}, expected a tensor of shape {expected}"
    if tuple(logits.shape) != expected or logits.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        dtype = str(logits.dtype).removeprefix("torch.")
        return f"returned {dtype} of shape {tuple(logits.shape)}, expected float32, bfloat16 or float16 of {expected}"
    return None
