"""The local answer returns other ids of the same logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from fixtures.heads.gemma4_mtp import Gemma4MTP
from refimpl.verdict.kinds import Kind
from refimpl.vocab.d2t import rising_table
from tests.head_mutants import mutant
from tests.head_mutants.right import MADE_UP, Engine


@dataclass(frozen=True, eq=False, kw_only=True)
class Reduced(Engine):
    """A sorted table."""

    vocab_size: int = 3001
    draft_vocab_size: int | None = 1003

    def d2t(self) -> np.ndarray:
        return rising_table(self.num_logits, self.vocab_size, np.random.default_rng(self.seed))


@mutant(kinds={Kind.WRONG_TARGET}, why="the table is never applied", seen="TensorRT-LLM #6948: 'dt2'")
class TableNeverApplied(Reduced):
    """The local answer returns draft ids."""

    def to_targets(self, draft_ids: torch.Tensor) -> torch.Tensor:
        return draft_ids


@mutant(kinds={Kind.WRONG_TARGET}, why="the table is applied twice", seen="reasoned: the model and its caller both map")
class TableAppliedTwice(Reduced):
    """The local answer adds the offset, and its caller adds it again."""

    def to_targets(self, draft_ids: torch.Tensor) -> torch.Tensor:
        d2t = self.table(draft_ids.device)
        assert d2t is not None
        return draft_ids + 2 * d2t[draft_ids]


@mutant(kinds={Kind.WRONG_TARGET}, why="offsets are returned as target ids", seen="SGLang keeps absolute ids")
class OffsetsAsTargets(Reduced):
    """The local answer takes the table's entries for target ids."""

    def to_targets(self, draft_ids: torch.Tensor) -> torch.Tensor:
        d2t = self.table(draft_ids.device)
        assert d2t is not None
        return d2t[draft_ids]


@mutant(kinds={Kind.WRONG_TARGET}, seen="reasoned: a table left behind by another training")
class TableOfAnotherTraining(Reduced):
    """The local answer maps by another table of the same length."""

    def to_targets(self, draft_ids: torch.Tensor) -> torch.Tensor:
        other = self.changed(seed=self.seed + 1).table(draft_ids.device)
        assert other is not None
        return draft_ids + other[draft_ids]


@dataclass(frozen=True, eq=False, kw_only=True)
class Masked(Gemma4MTP):
    """Masked candidates at a small size, in the order of their ids and without suppressed ones."""

    vocab_size: int = 1024
    num_centroids: int = 32
    top_k: int = 8

    def candidates(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits, ids = super().candidates(hidden_states)
        ids, order = ids.sort(dim=1)
        logits = logits.gather(1, order)
        return torch.where(torch.isin(ids, torch.tensor(self.suppressed)), -torch.inf, logits), ids


def _masked(suppressed: tuple[int, ...]) -> dict[str, object]:
    return dict(source=MADE_UP, vocab_size=1024, hidden_size=32, masks=True, suppressed=suppressed)


right_masked = Masked(**_masked((0, 5)))  # type: ignore[arg-type]


@mutant(kinds={Kind.WRONG_TIE}, seen="vLLM gemma4_mtp.py")
class CandidateOrder(Masked):
    """The first candidate in centroid order wins a tie."""

    def __init__(self, **figures: object) -> None:
        super().__init__(**{**_masked(()), **figures})  # type: ignore[arg-type]

    def candidates(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return Gemma4MTP.candidates(self, hidden_states)


@mutant(kinds={Kind.OTHER_LOGITS, Kind.WRONG_MAXIMUM}, why="suppressed ids are not left out", seen="vLLM gemma4_mtp.py")
class SuppressedIdsIgnored(Masked):
    """The local answer does not know of suppressed ids."""

    def __init__(self, **figures: object) -> None:
        super().__init__(**{**_masked(tuple(range(0, 1024, 3))), **figures})  # type: ignore[arg-type]

    def local_tokens(
        self, hidden_states: torch.Tensor, group: dist.ProcessGroup, spec_step_idx: int = 0
    ) -> torch.Tensor:
        logits, ids = self.changed(suppressed=()).candidates(hidden_states)  # type: ignore[attr-defined]
        return ids.gather(1, logits.argmax(dim=1, keepdim=True)).squeeze(1)
