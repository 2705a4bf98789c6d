"""Drafting loop: several draft steps in a row, each answer fed its own tokens back, then a greedy verification.

Engines claim that acceptance is on par with the fast path. Here it must be the same at every position: one other token
changes what is drafted after it.
"""

from __future__ import annotations

import pytest

from refimpl.draft_case import DraftCase, Loops
from refimpl.head_case import HeadCase
from refimpl.head_check import HeadChecker
from refimpl.heads import CHECKPOINT
from refimpl.verdict.kinds import Kind

pytestmark = [pytest.mark.head, pytest.mark.obligations("O0")]

STEPS = 4
_CELLS = 1 << 21


def loop_of(check: HeadChecker, sequences: int, seed: int) -> DraftCase:
    return DraftCase(check.facts.ref, check.layout, tuple(range(sequences)), STEPS, seed)


@pytest.mark.needs_hidden_states
def test_drafting_loop(check_head: HeadChecker) -> None:
    """Identical draft tokens at every position, identical acceptance per position and acceptance length."""
    facts, drafting = check_head.facts, check_head.drafting
    case = loop_of(check_head, max(12, min(32, _CELLS // facts.num_logits)), seed=1)
    run, judgement = drafting.run(case)
    loops = Loops.of(run)
    if loops is None:
        drafting.conclude(case, run, judgement)
        return
    full, path = loops.full[0], loops.local[0]
    if facts.name.startswith(CHECKPOINT):  # a model's weights may be such that the toy pair shows little: it says so
        length = f"{full.accepted.mean():.2f} accepted draft tokens on average, {loops.tied} ties on the way"
        check_head.note(f"{check_head.path}, tp {check_head.tp_size}: drafting loop of {length}")
    else:
        assert full.accepted.mean() >= 1.5, "the toy pair hardly accepts anything: acceptance would show no difference"
        assert loops.tied != 0, "no tie on the way: the loop could not have shown a wrong tie rule"
    if [finding.kind for finding in judgement.findings] != [Kind.ROW_DEPENDENCE]:
        drafting.conclude(case, run, judgement)
        return
    for step in range(STEPS):  # the same hidden states outside the loop: this names what is wrong with a step
        check_head(HeadCase(facts.ref, check_head.layout, facts.dtype, full.states[step], step))
    if check_head.any_known_seen:
        judgement.findings.clear()
    drafting.conclude(case, run, judgement)
    lengths = f"{full.accepted.mean():.2f} by the full gather, {path.accepted.mean():.2f} by this answer"
    check_head.note(f"{check_head.path}, tp {check_head.tp_size}: mean accepted draft tokens {lengths}")
