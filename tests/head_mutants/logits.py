"""The local answer starts from other logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from refimpl.verdict.kinds import Kind
from tests.head_mutants import mutant
from tests.head_mutants.right import Engine


@mutant(kinds={Kind.OTHER_LOGITS}, why="logit_scale is left out", seen="vLLM inkling: 1/muP skipped as invariant")
@dataclass(frozen=True, eq=False, kw_only=True)
class ScaleLeftOut(Engine):
    """The local answer skips a scale that is no power of two: in bfloat16 it merges values."""

    logit_scale: float = 1 / 24

    def seen_locally(self, hidden_states: torch.Tensor, group: dist.ProcessGroup, spec_step_idx: int) -> torch.Tensor:
        return self.changed(logit_scale=1.0).local_logits(hidden_states, self.shard(group), spec_step_idx)


@mutant(kinds={Kind.OTHER_LOGITS}, why="the soft cap is left out", seen="b12x and TokenSpeed refuse caps for it")
@dataclass(frozen=True, eq=False, kw_only=True)
class CapLeftOut(Engine):
    """The local answer skips the soft cap, which is flat where logits are large."""

    soft_cap: float | None = 30.0

    def seen_locally(self, hidden_states: torch.Tensor, group: dist.ProcessGroup, spec_step_idx: int) -> torch.Tensor:
        return self.changed(soft_cap=None).local_logits(hidden_states, self.shard(group), spec_step_idx)


@mutant(
    kinds={Kind.OTHER_LOGITS},
    why="soft cap and scale are applied in the other order",
    seen="vLLM get_top_k_tokens scales first, forward() caps first",
)
@dataclass(frozen=True, eq=False, kw_only=True)
class CapAndScaleSwapped(Engine):
    """The local answer scales before it caps."""

    soft_cap: float | None = 30.0
    logit_scale: float = 4.0

    def seen_locally(self, hidden_states: torch.Tensor, group: dist.ProcessGroup, spec_step_idx: int) -> torch.Tensor:
        return self.changed(scale_first=True).local_logits(hidden_states, self.shard(group), spec_step_idx)


@mutant(kinds={Kind.OTHER_LOGITS}, why="the bias is left out", seen="SGLang DFlash head reads raw weights")
@dataclass(frozen=True, eq=False, kw_only=True)
class BiasLeftOut(Engine):
    """The local answer multiplies by the weight alone."""

    bias: bool = True

    def seen_locally(self, hidden_states: torch.Tensor, group: dist.ProcessGroup, spec_step_idx: int) -> torch.Tensor:
        return self.changed(bias=False).local_logits(hidden_states, self.shard(group), spec_step_idx)


@mutant(
    kinds={Kind.OTHER_LOGITS}, why="the norm before the projection is left out", seen="vLLM #56995: V3's shared norm"
)
@dataclass(frozen=True, eq=False, kw_only=True)
class NormLeftOut(Engine):
    """The local answer projects hidden states that were not normed; the gain is not uniform."""

    norm: bool = True

    def seen_locally(self, hidden_states: torch.Tensor, group: dist.ProcessGroup, spec_step_idx: int) -> torch.Tensor:
        return self.changed(norm=False).local_logits(hidden_states, self.shard(group), spec_step_idx)


@mutant(kinds={Kind.OTHER_LOGITS}, why="spec_step_idx is ignored", seen="vLLM: the mixin has no step index")
@dataclass(frozen=True, eq=False, kw_only=True)
class StepIgnored(Engine):
    """The local answer always takes the projection of step 0."""

    steps: int = 3

    def seen_locally(self, hidden_states: torch.Tensor, group: dist.ProcessGroup, spec_step_idx: int) -> torch.Tensor:
        return super().seen_locally(hidden_states, group, 0)


@mutant(kinds={Kind.OTHER_LOGITS}, why="logit_scale is left out", seen="vLLM get_top_tokens refuses such a scale")
@dataclass(frozen=True, eq=False, kw_only=True)
class NegativeScaleAccepted(Engine):
    """A scale below zero is taken for one an argmax does not see: the smallest logit is found."""

    logit_scale: float = -1.0

    def seen_locally(self, hidden_states: torch.Tensor, group: dist.ProcessGroup, spec_step_idx: int) -> torch.Tensor:
        return self.changed(logit_scale=1.0).local_logits(hidden_states, self.shard(group), spec_step_idx)


@mutant(kinds={Kind.OTHER_LOGITS}, why="computed in bfloat16, not in float32", seen="vLLM head_dtype on one path only")
@dataclass(frozen=True, eq=False, kw_only=True)
class OtherDtype(Engine):
    """The full gather projects in float32, the local answer in bfloat16."""

    head_dtype: str | None = "float32"

    def seen_locally(self, hidden_states: torch.Tensor, group: dist.ProcessGroup, spec_step_idx: int) -> torch.Tensor:
        return self.changed(head_dtype=None).local_logits(hidden_states, self.shard(group), spec_step_idx)


@mutant(kinds={Kind.ID_OUT_OF_RANGE}, seen="reasoned: what get_top_tokens refuses a negative scale for")
@dataclass(frozen=True, eq=False, kw_only=True)
class MaskBeforeNegativeScale(Engine):
    """Padding is masked with -inf and then multiplied by a negative scale."""

    logit_scale: float = -1.0

    def seen_locally(self, hidden_states: torch.Tensor, group: dist.ProcessGroup, spec_step_idx: int) -> torch.Tensor:
        return self.changed(logit_scale=1.0).local_logits(hidden_states, self.shard(group), spec_step_idx)

    def draft_ids(self, logits: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        logits[:, self.shard(group).num_real :] = -torch.inf
        return self.exchanged(logits * self.logit_scale, group)


@mutant(kinds={Kind.FULL_PATH}, seen="vLLM llama4_eagle: lm_head and logits cut of two sizes")
@dataclass(frozen=True, eq=False, kw_only=True)
class FullGatherKeepsPadding(Engine):
    """The full gather does not cut the padding rows; where every logit is negative their zeros win."""

    def full_tokens(
        self, hidden_states: torch.Tensor, group: dist.ProcessGroup, spec_step_idx: int = 0
    ) -> torch.Tensor:
        padded = self.changed(vocab_size=-(-self.vocab_size // 64) * 64)
        logits = padded.full_logits(hidden_states, group, spec_step_idx)
        logits[:, self.vocab_size :] = 0
        return logits.argmax(dim=1)
