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
from refimpl.verdict.kinds import Kind

pytestmark = pytest.mark.obligations("O0")

STEPS = 5
_CELLS = 1 << 22


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


def loops(check: HeadChecker, batch: int, seed: int) -> tuple[Loop, list[Loop]]:
    """The loop of the full gather, and that of the path on every rank."""
    answers = check.draft(batch, STEPS, seed)
    return Loop(*answers[0][:3]), [Loop(*arrays[3:]) for arrays in answers]


@pytest.mark.needs_hidden_states
def test_drafting_loop(check_head: HeadChecker) -> None:
    """Identical draft tokens at every position, identical acceptance per position and acceptance length."""
    batch = max(8, min(32, _CELLS // check_head.facts.num_logits))
    full, local = loops(check_head, batch, seed=1)
    assert full.accepted.mean() >= 1.5, "the toy pair hardly accepts anything: acceptance would show no difference"
    # The same hidden states outside the loop: this names what is wrong with a step, and counts its ties.
    facts, tied = check_head.facts, 0
    steps = [HeadCase(facts.ref, check_head.layout, facts.dtype, full.states[step], step) for step in range(STEPS)]
    for case in steps:
        tied += check_head(case).tally.tied_rows
    for rank, loop in enumerate(local):
        other = np.argwhere(loop.drafted != local[0].drafted)
        if len(other):
            step, row = other[0]
            message = f"draft step {step}, sequence {row}: rank {rank} drafted another token than rank 0"
            check_head.fail(Kind.RANK_DISAGREEMENT, message, steps[step])
    path = local[0]
    other = np.argwhere((path.drafted != full.drafted) | (path.greedy != full.greedy))
    if len(other) and not check_head.any_known_seen:
        step, row = other[0]
        message = (
            f"draft step {step}, sequence {row}: another token than the full gather's, though each step alone agrees"
        )
        check_head.fail(Kind.ROW_DEPENDENCE, message, steps[step])
    if len(other):
        lengths = f"{full.accepted.mean():.2f} by the full gather, {path.accepted.mean():.2f} by this answer"
        check_head.note(f"{check_head.path}, tp {check_head.tp_size}: mean accepted draft tokens {lengths}")
    if facts.has_weights and not facts.own_tokens:
        assert tied, "no tie on the way: the loop could not have shown a wrong tie rule"
