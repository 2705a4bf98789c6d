"""Seeded bugs that show in a drafting loop and in no single call: each comes with the third step.

Paths count their calls, so on fresh ranks a case of one call does not show them. Heads look at the step, which of a
head of one projection is 0 wherever it is asked alone.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from refimpl.contract import UnsupportedInput
from refimpl.head import Head
from refimpl.paths.gather_pairs import gather_pairs
from refimpl.verdict.kinds import Kind
from tests.head_mutants.right import MADE_UP, Engine

STEP = 2
PATHS: dict[str, Kind] = {}
HEADS: dict[str, Kind] = {}
_calls = itertools.count()


def _wrong_from_step(kind: Kind) -> Callable[[Any], Any]:
    """Register a path that calls the function in its third call, with the tokens that would be right."""

    def register(bug: Any) -> Any:
        def path(local_logits: Any, shard: Any, group: Any, d2t: Any = None) -> Any:
            if next(_calls) != STEP:
                return gather_pairs(local_logits, shard, group, d2t)
            return bug(local_logits, shard, lambda: gather_pairs(local_logits, shard, group, d2t))

        PATHS[bug.__name__] = kind
        return path

    return register


@_wrong_from_step(Kind.RAISED_ON_SOME_RANKS)
def raises_on_one_rank(logits: torch.Tensor, shard: Any, answer: Any) -> Any:
    if shard.tp_rank == 1:
        raise ValueError("no more")
    return answer()


@_wrong_from_step(Kind.RAISED)
def raises(logits: torch.Tensor, shard: Any, answer: Any) -> Any:
    raise ValueError("no more")


@_wrong_from_step(Kind.HANG)
def sleeps(logits: torch.Tensor, shard: Any, answer: Any) -> Any:
    if shard.tp_rank == 1:
        time.sleep(3600)
    return answer()


@_wrong_from_step(Kind.DIED)
def is_killed(logits: torch.Tensor, shard: Any, answer: Any) -> Any:
    if shard.tp_rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return answer()


@_wrong_from_step(Kind.RESULT_TYPE)
def returns_int32(logits: torch.Tensor, shard: Any, answer: Any) -> Any:
    return answer().int()


@_wrong_from_step(Kind.RANK_DISAGREEMENT)
def one_rank_differs(logits: torch.Tensor, shard: Any, answer: Any) -> Any:
    return answer() + (shard.tp_rank == 1)


@_wrong_from_step(Kind.ROW_DEPENDENCE)
def all_ranks_differ(logits: torch.Tensor, shard: Any, answer: Any) -> Any:
    return answer() + 1


@_wrong_from_step(Kind.ROW_DEPENDENCE)
def refuses(logits: torch.Tensor, shard: Any, answer: Any) -> Any:
    raise UnsupportedInput("no more than two steps")


@_wrong_from_step(Kind.INPUT_MODIFIED)
def writes_into_its_input(logits: torch.Tensor, shard: Any, answer: Any) -> Any:
    tokens = answer()
    logits.fill_(0)
    return tokens


def declines(local_logits: Any, shard: Any, group: Any, d2t: Any = None) -> Any:
    """No bug: it takes no input at all, and says so."""
    raise UnsupportedInput("nothing of this form")


def always_raises(local_logits: Any, shard: Any, group: Any, d2t: Any = None) -> Any:
    """Nothing of it can be compared, which is a failure and not an empty run."""
    raise ValueError("never")


@dataclass(frozen=True, eq=False, kw_only=True)
class AnswerRaises(Engine):
    """An engine whose local answer knows two steps."""

    def local_tokens(self, hidden_states: Any, group: Any, spec_step_idx: int = 0) -> torch.Tensor:
        if spec_step_idx >= STEP:
            raise IndexError("no such step")
        return super().local_tokens(hidden_states, group, spec_step_idx)


@dataclass(frozen=True, eq=False, kw_only=True)
class LogitsRaise(Head):
    """A head for a path, whose logits know two steps."""

    def local_logits(self, hidden_states: Any, shard: Any, spec_step_idx: int = 0) -> torch.Tensor:
        if spec_step_idx >= STEP:
            raise IndexError("no such step")
        return super().local_logits(hidden_states, shard, spec_step_idx)


answer_raises = AnswerRaises()
logits_raise = LogitsRaise(source=MADE_UP, vocab_size=1003, hidden_size=32)
