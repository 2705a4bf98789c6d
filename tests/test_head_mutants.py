"""Every seeded bug of a head is refuted with the right kind and its reason, from a hidden state of one row."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from properties.strategies.hidden_states import HiddenStates
from refimpl.case import Call, Case
from refimpl.head_case import HeadCase, HeadRef
from refimpl.head_check import HeadChecker
from refimpl.ranks.head_runtime import OWN, facts_of
from refimpl.ranks.journal import Journal
from refimpl.ranks.outcome import CallOutcome, RankOutcome, Run
from refimpl.ranks.runtime import Ranks
from refimpl.session import Checker, Failure, Session
from refimpl.verdict.head_judge import judge_head
from refimpl.verdict.head_reduce import HeadReducer
from refimpl.vocab.layouts import even_layout
from tests.head_mutants import HeadMutant, all_mutants

TP_SIZE = 2
_SEEDS = 6


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with Ranks(backend="gloo", limit=10.0) as ranks:
        journal = Journal(tmp_path_factory.mktemp("journal"), "heads")
        yield Session(ranks, journal, reduce_seconds=8.0)
        journal.close(0)


def checker(session: Session, name: str, path: str = OWN) -> HeadChecker:
    facts = facts_of(session.ranks, HeadRef(name), [TP_SIZE])
    check = Checker(session, path, TP_SIZE, f"test_head_mutants.py::{name}")
    check.head = name
    return HeadChecker(check, session, facts)


def first_failure(check: HeadChecker) -> Failure | None:
    for seed in range(_SEEDS):
        for case in HiddenStates(seed, batch=60).cases(check):
            try:
                check(case)
            except Failure as failure:
                return failure
    return None


@pytest.mark.parametrize("mutant", all_mutants(), ids=lambda mutant: mutant.name)
def test_refuted_with_the_right_kind(session: Session, mutant: HeadMutant) -> None:
    failure = first_failure(checker(session, mutant.spec))
    assert failure is not None, f"not seen: {mutant.note}"
    found = failure.counterexamples[0]
    assert found.kind in mutant.kinds, f"{found.identity}: {found.finding.message}"
    assert mutant.why is None or (found.why is not None and mutant.why in found.why), found.why
    assert found.origin is not None and found.origin.num_rows == 1


@pytest.mark.parametrize("name", ["right:Engine", "ids:Reduced", "ids:right_masked"])
def test_engines_without_a_bug_hold(session: Session, name: str) -> None:
    check = checker(session, f"tests.head_mutants.{name}")
    failure = first_failure(check)
    assert failure is None, str(failure)
    assert check.tally.hidden.tied_rows > 20 and check.tally.hidden.cross_shard_ties > 10


def test_logits_that_change_are_seen_for_a_path(session: Session) -> None:
    """A head whose logits are not the same twice: no path can be held to them."""
    check = checker(session, "tests.head_mutants.right:Unsteady", "gather_pairs")
    failure = first_failure(check)
    assert failure is not None and failure.counterexamples[0].kind.value == "other-logits"


def test_the_hidden_state_told_is_that_of_the_row_that_fails() -> None:
    layout = even_layout(4, 2)
    states = np.zeros((40, 3), np.uint16)
    states[:, 0], states[33, 1] = 0x3F80, 0x4000
    case = HeadCase(HeadRef("h"), layout, "bfloat16", states)
    right = np.zeros(40, np.int64)
    wrong = np.where(np.arange(40) == 33, 1, right)
    call = CallOutcome("answered", reference=right, tokens=wrong)
    run = Run((RankOutcome((call,)), RankOutcome((call,))), 1.0)
    given = Case((Call(layout, "bfloat16", np.zeros((1, 4), np.uint16)),))
    facts = SimpleNamespace(has_weights=False, steps=1, d2t=None)
    ranks: Any = SimpleNamespace(facts=facts, given=lambda case, rows: given)
    (finding,) = judge_head(case, run, None).findings
    found = HeadReducer(ranks, case, run, 0.0).counterexample(finding)  # no time: nothing is cut down
    assert found.notes == ("hidden state of 3 values: [0] = 1.0, [1] = 2.0, all else 0",)
