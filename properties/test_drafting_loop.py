"""Drafting loop: several draft steps in a row, each answer fed its own tokens back, then a greedy verification.

Engines claim that acceptance is on par with the fast path. Here it must be the same at every position: one other token
changes what is drafted after it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from refimpl.head_case import HeadCase
from refimpl.head_check import HeadChecker
from refimpl.heads import CHECKPOINT
from refimpl.verdict.kinds import Kind

pytestmark = [pytest.mark.head, pytest.mark.obligations("O0")]

STEPS = 4
_CELLS = 1 << 21


@dataclass(frozen=True, eq=False)
class Loop:
    """One loop: drafted and greedy tokens and hidden states, ``(steps, batch, ...)``."""

    drafted: np.ndarray
    greedy: np.ndarray
    states: np.ndarray

    @property
    def accepted(self) -> np.ndarray:
        """How many drafted tokens of each sequence are accepted, int64 ``(batch,)``; the bonus token is not counted."""
        return np.asarray(np.cumprod(self.drafted == self.greedy, axis=0).sum(axis=0))


@dataclass(frozen=True, eq=False)
class Loops:
    """The loop of the full gather, that of the path on every rank, and how many of the full gather's rows tied."""

    full: Loop
    local: list[Loop]
    tied: int | None


def loops(check: HeadChecker, batch: int, seed: int) -> Loops:
    answers, tied = check.draft(batch, STEPS, seed)
    return Loops(Loop(*answers[0][:3]), [Loop(*arrays[3:]) for arrays in answers], tied)


@pytest.mark.needs_hidden_states
def test_drafting_loop(check_head: HeadChecker) -> None:
    """Identical draft tokens at every position, identical acceptance per position and acceptance length."""
    facts = check_head.facts
    found = loops(check_head, max(12, min(32, _CELLS // facts.num_logits)), seed=1)
    full, path = found.full, found.local[0]
    if facts.name.startswith(CHECKPOINT):  # a model's weights may be such that the toy pair shows little: it says so
        length = f"{full.accepted.mean():.2f} accepted draft tokens on average, {found.tied} ties on the way"
        check_head.note(f"{check_head.path}, tp {check_head.tp_size}: drafting loop of {length}")
    else:
        assert full.accepted.mean() >= 1.5, "the toy pair hardly accepts anything: acceptance would show no difference"
        assert found.tied != 0, "no tie on the way: the loop could not have shown a wrong tie rule"
    steps = [HeadCase(facts.ref, check_head.layout, facts.dtype, full.states[step], step) for step in range(STEPS)]
    for rank, loop in enumerate(found.local):
        other = np.argwhere(loop.drafted != path.drafted)
        if len(other):
            step, row = other[0]
            message = f"draft step {step}, sequence {row}: rank {rank} drafted another token than rank 0"
            check_head.fail(Kind.RANK_DISAGREEMENT, message, steps[step])
    other = np.argwhere((path.drafted != full.drafted) | (path.greedy != full.greedy))
    if not len(other):
        return
    for case in steps:  # the same hidden states outside the loop: this names what is wrong with a step
        check_head(case)
    if not check_head.any_known_seen:
        step, row = other[0]
        message = "another token than the full gather's, though each step alone agrees"
        check_head.fail(Kind.ROW_DEPENDENCE, f"draft step {step}, sequence {row}: {message}", steps[step])
    lengths = f"{full.accepted.mean():.2f} by the full gather, {path.accepted.mean():.2f} by this answer"
    check_head.note(f"{check_head.path}, tp {check_head.tp_size}: mean accepted draft tokens {lengths}")
