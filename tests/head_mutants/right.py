"""An engine that answers for itself, without a bug: the mutants differ from it in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from fixtures.heads._engines import best_of_ranks
from fixtures.heads._tables import FrequencyTable
from refimpl.head import Head

MADE_UP = {"all": "made up"}


@dataclass(frozen=True, eq=False, kw_only=True)
class Engine(Head):
    """Full gather and local reduction as vLLM does them, over the same logits."""

    source: Mapping[str, str] = field(default_factory=lambda: MADE_UP)
    vocab_size: int = 1003
    hidden_size: int = 32

    def full_tokens(
        self, hidden_states: torch.Tensor, group: dist.ProcessGroup, spec_step_idx: int = 0
    ) -> torch.Tensor:
        return self.argmax(self.full_logits(hidden_states, group, spec_step_idx))

    def local_tokens(
        self, hidden_states: torch.Tensor, group: dist.ProcessGroup, spec_step_idx: int = 0
    ) -> torch.Tensor:
        return self.to_targets(self.draft_ids(self.seen_locally(hidden_states, group, spec_step_idx), group))

    def seen_locally(self, hidden_states: torch.Tensor, group: dist.ProcessGroup, spec_step_idx: int) -> torch.Tensor:
        """The logits of which the local answer takes the argmax."""
        return self.local_logits(hidden_states, self.shard(group), spec_step_idx)

    def draft_ids(self, logits: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        shard = self.shard(group)
        logits[:, shard.num_real :] = -torch.inf
        return self.exchanged(logits, group)

    def exchanged(self, logits: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        values, columns = logits.max(dim=1)
        return best_of_ranks(values, columns + self.shard(group).start, group)

    def to_targets(self, draft_ids: torch.Tensor) -> torch.Tensor:
        d2t = self.table(draft_ids.device)
        return draft_ids if d2t is None else draft_ids + d2t[draft_ids]


@dataclass(frozen=True, eq=False, kw_only=True)
class Unsteady(Head):
    """No engine, but a head for a path: its logits differ from call to call."""

    source: Mapping[str, str] = field(default_factory=lambda: MADE_UP)
    vocab_size: int = 1003
    hidden_size: int = 32

    def finish(self, logits: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(logits, 0.1)


by_frequency = FrequencyTable(source=MADE_UP, vocab_size=3001, draft_vocab_size=1003, hidden_size=32)
