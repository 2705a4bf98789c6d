"""A small engine with the interface that the vLLM adapter drives, for its tests: sound, or with one fault.

As an adapter (``--engine=tests.engine_stand_in``) it is sound. It lacks on purpose what some releases lack: added
vocabulary, logits as input, a dtype of the projection.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from fixtures.engines import vllm
from refimpl.engine_case import EngineCase
from refimpl.engines import EngineFacts
from refimpl.head import Head

RUN_AGAINST = ("1.0",)
COLLECTIVES = ()
GROUP: list[dist.ProcessGroup] = []


class ShardIndices:
    def __init__(self, vocab_size: int, padded: int, rank: int, size: int) -> None:
        self.num_org_elements_padded = padded // size
        self.org_vocab_start_index = min(rank * padded // size, vocab_size)
        self.num_org_elements = min((rank + 1) * padded // size, vocab_size) - self.org_vocab_start_index
        self.num_org_vocab_padding = self.num_org_elements_padded - self.num_org_elements


class ParallelLMHead:
    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        bias: bool = False,
        params_dtype: torch.dtype | None = None,
        padding_size: int = 64,
    ) -> None:
        self.tp_size = dist.get_world_size(GROUP[0])
        self.num_embeddings = num_embeddings
        padded = -(-num_embeddings // padding_size) * padding_size
        assert padded % self.tp_size == 0
        self.shard_indices = ShardIndices(num_embeddings, padded, dist.get_rank(GROUP[0]), self.tp_size)
        rows = self.shard_indices.num_org_elements_padded
        self.weight = torch.full((rows, embedding_dim), torch.nan, dtype=params_dtype)
        self.bias = torch.full((rows,), torch.nan, dtype=params_dtype) if bias else None


def _gathered(local: torch.Tensor) -> torch.Tensor:
    parts = [torch.empty_like(local) for _ in range(dist.get_world_size(GROUP[0]))]
    dist.all_gather(parts, local.contiguous(), group=GROUP[0])
    return torch.cat(parts, dim=-1)


class LogitsProcessor:
    """``fault``: what `stand_in` was asked for."""

    fault: str | None = None

    def __init__(
        self, vocab_size: int, org_vocab_size: int | None = None, scale: float = 1.0, soft_cap: float | None = None
    ) -> None:
        self.org_vocab_size = org_vocab_size or vocab_size
        self.scale = scale
        self.soft_cap = soft_cap

    def _local(self, lm_head: Any, hidden_states: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        logits = torch.nn.functional.linear(hidden_states, lm_head.weight, bias)
        if self.soft_cap is not None:
            logits = torch.tanh(logits / self.soft_cap) * self.soft_cap
        return logits * self.scale

    def __call__(
        self, lm_head: Any, hidden_states: torch.Tensor, embedding_bias: Any = None, skip_gather: bool = False
    ) -> torch.Tensor:
        if self.fault == "dies on an empty batch either way" and not len(hidden_states):
            os.kill(os.getpid(), signal.SIGFPE)
        local = self._local(lm_head, hidden_states, embedding_bias)
        return local if skip_gather else _gathered(local)[..., : self.org_vocab_size]

    def get_top_tokens(self, lm_head: Any, hidden_states: torch.Tensor, embedding_bias: Any = None) -> torch.Tensor:
        if self.scale <= 0:
            if self.fault == "other words":
                raise ValueError("something else is wrong")
            raise ValueError("The reduction is not supported for non-positive logit scaling factors.")
        if self.fault in ("dies on an empty batch", "dies on an empty batch either way") and not len(hidden_states):
            os.kill(os.getpid(), signal.SIGFPE)
        if self.fault == "gathers everything":
            return self(lm_head, hidden_states, embedding_bias).argmax(dim=-1)
        bias = None if self.fault == "no bias" else embedding_bias
        logits = self._local(lm_head, hidden_states, bias)
        padding = lm_head.shard_indices.num_org_vocab_padding
        if padding:
            logits[..., -padding:] = -torch.inf
        values, ids = logits.max(dim=-1)
        ids = ids + lm_head.shard_indices.org_vocab_start_index
        pairs = _gathered(torch.stack([values.float(), ids.float()], dim=-1)).view(len(hidden_states), -1, 2)
        best = pairs[..., 0].argmax(dim=-1, keepdim=True)
        return pairs[..., 1].gather(-1, best).squeeze(-1).to(torch.int64)

    def get_top_k_tokens(
        self,
        lm_head: Any,
        hidden_states: torch.Tensor,
        k: int,
        embedding_bias: Any = None,
        *,
        return_log_probs: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sound: cap and scale before the selection, no candidate but real columns, ties by the lowest id."""
        if self.scale <= 0:
            raise ValueError("The reduction is not supported for non-positive logit scaling factors.")
        if k > lm_head.num_embeddings:
            raise IndexError(f"k is {k}, there are {lm_head.num_embeddings} ids")
        if self.fault == "gathers everything":
            full = self._whole(lm_head, hidden_states, embedding_bias)
            values, ids = _top(full.float(), torch.arange(full.shape[-1]).expand(full.shape), k)
        else:
            values, ids = self._candidates(lm_head, hidden_states, embedding_bias, k)
            values, ids = _top(_gathered(values), _gathered(ids), k, last=self.fault == "ties by the highest id")
        if self.fault == "one value a row":
            values = values[..., :1].expand(values.shape).contiguous()
        if self.fault == "one rank differs" and dist.get_rank(GROUP[0]):
            ids = ids.flip(-1)
        if return_log_probs:
            full = self._whole(lm_head, hidden_states, embedding_bias)
            values = values - torch.logsumexp(full.float(), dim=-1, keepdim=True)
        return ids, values

    def _whole(self, lm_head: Any, hidden_states: torch.Tensor, bias: Any) -> torch.Tensor:
        return _gathered(self._local(lm_head, hidden_states, bias))[..., : lm_head.num_embeddings]

    def _candidates(
        self, lm_head: Any, hidden_states: torch.Tensor, bias: Any, k: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The k best of this shard, filled up with -inf and an id above all others."""
        indices = lm_head.shard_indices
        logits = self._local(lm_head, hidden_states, None if self.fault == "no bias" else bias).float()
        if self.fault != "padding candidates":
            logits = logits[..., : indices.num_org_elements]
        start = 0 if self.fault == "local ids" else indices.org_vocab_start_index
        ids = (torch.arange(logits.shape[-1]) + start).expand(logits.shape)
        values, ids = _top(-logits if self.fault == "smallest" else logits, ids, k)
        missing = (*values.shape[:-1], k - values.shape[-1])
        values = torch.cat([values, values.new_full(missing, -torch.inf)], dim=-1)
        return values, torch.cat([ids, ids.new_full(missing, torch.iinfo(torch.int64).max)], dim=-1)


def _top(values: torch.Tensor, ids: torch.Tensor, k: int, *, last: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """By falling value, equal ones by the lowest id (by the highest with ``last``)."""
    by_id = ids.argsort(dim=-1, stable=True, descending=last)
    values, places = values.gather(-1, by_id).sort(dim=-1, descending=True, stable=True)
    return values[..., :k], ids.gather(-1, by_id).gather(-1, places)[..., :k]


class LocalArgmaxMixin:
    def get_top_tokens(self, hidden_states: torch.Tensor) -> torch.Tensor:
        top = self.logits_processor.get_top_tokens(self.lm_head, hidden_states)  # type: ignore[attr-defined]
        return top + self.draft_id_to_target_id[top]  # type: ignore[attr-defined]


@contextlib.contextmanager
def _nothing(head_dtype: str | None) -> Iterator[None]:
    assert head_dtype is None
    yield


def stand_in(fault: str | None = None, release: str = "1.0", mixin: Any = LocalArgmaxMixin) -> vllm.Api:
    """``fault``: None or one of those that the classes above look for."""

    def open_group(group: dist.ProcessGroup, name: str) -> None:
        assert name.startswith("argmax-parity-")
        GROUP[:] = [group]

    processor = type("LogitsProcessor", (LogitsProcessor,), {"fault": fault})
    return vllm.Api(release, processor, ParallelLMHead, mixin, open_group, _nothing)


API = stand_in()


def preload() -> None:
    """Nothing: it is here."""


def facts() -> EngineFacts:
    return vllm.facts_of("stand-in", API, RUN_AGAINST)


def open_group(group: dist.ProcessGroup) -> None:
    vllm.opened(API, group)


def head(case: EngineCase, weight: torch.Tensor, bias: torch.Tensor | None) -> Head:
    return vllm.head_of(API, case, weight, bias)
