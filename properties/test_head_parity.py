"""Heads: both answers start from hidden states, so a norm, cap, scale, bias or step that one leaves out is found.

A path is given logits that the head makes anew; a head that answers for itself gives both answers from its own code.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.strategies.effort import certifies, few
from properties.strategies.hidden_states import FORMS, HiddenStates, hidden_states
from refimpl.head_check import HeadChecker
from refimpl.verdict.verdict import MINIMUM_ROWS

pytestmark = [pytest.mark.head, pytest.mark.obligations("O0")]

_CELLS = 1 << 23


@pytest.mark.needs_hidden_states
@few(4)
@given(data=st.data())
def test_from_hidden_states(check_head: HeadChecker, data: st.DataObject) -> None:
    """Zero, one-hot, huge and tiny states, states along rows of the weights and between two; every step."""
    for case in data.draw(hidden_states(check_head.facts.num_logits)).cases(check_head):
        check_head(case)


@pytest.mark.needs_own_answers
def test_as_many_rows_as_a_verdict_asks_for(check_head: HeadChecker) -> None:
    """A head that answers for its own reduction has no other rows: each is a test of all that lies in between."""
    batch = max(len(FORMS), min(128, _CELLS // check_head.facts.num_logits))
    seed = rows = 0
    while rows < (MINIMUM_ROWS if certifies() else 1):
        seed += 1
        for case in HiddenStates(seed, batch).cases(check_head):
            check_head(case)
            rows += case.num_rows


@pytest.mark.needs_hidden_states
@pytest.mark.needs_known
def test_known_divergences_still_show(check_head: HeadChecker) -> None:
    """What a head states as known must be seen; where it is gone, the statement is to be taken out."""
    for seed in range(8):
        for case in HiddenStates(seed, batch=40).cases(check_head):
            check_head(case)
        if not check_head.unseen_known:
            return
    pytest.fail(f"no longer diverges, take it out of the head's known: {'; '.join(check_head.unseen_known)}")
