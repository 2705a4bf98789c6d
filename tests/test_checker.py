"""What a property's `check` does beyond one run of a case: it runs some twice, and keeps what ran before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from refimpl import bits
from refimpl import session as sessions
from refimpl.case import Call, Case
from refimpl.ranks.journal import Journal
from refimpl.ranks.outcome import Run
from refimpl.ranks.runtime import Ranks
from refimpl.session import Checker, Failure, Session
from refimpl.verdict.kinds import Kind
from refimpl.vocab.layouts import even_layout

PATHS = """
import torch
from refimpl.contract import UnsupportedInput
from refimpl.paths.gather_pairs import gather_pairs

calls = 0
marked = False

def raises_at_its_fifth_call(local_logits, shard, group, d2t=None):
    global calls
    calls += 1
    if calls == 5:
        raise RuntimeError("the fifth")
    return gather_pairs(local_logits, shard, group, d2t)

def wrong_after_three_rows(local_logits, shard, group, d2t=None):
    global marked
    if d2t is not None:
        raise UnsupportedInput("no table")
    tokens = gather_pairs(local_logits, shard, group, d2t)
    marked |= len(tokens) == 3
    return (tokens == 0).long() if marked and len(tokens) == 7 else tokens
"""


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    root = tmp_path_factory.mktemp("run")
    (root / "paths.py").write_text(PATHS)
    with Ranks(backend="gloo", limit=2.0) as ranks:
        yield Session(ranks, Journal(root, "test"), reduce_seconds=5.0)


def check(session: Session, name: str) -> Checker:
    return Checker(session, f"{session.journal.root / 'paths.py'}:{name}", 2, "test")


def call(batch: int, d2t: np.ndarray | None = None) -> Call:
    logits = bits.encode(np.arange(batch * 8).reshape(batch, 8) * 5 % 11, "float32")
    return Call(even_layout(8, 2), "float32", logits, d2t=d2t)


def test_a_case_that_fails_when_it_is_run_again(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may end earlier than it did at first, and the run that is told of is the one that failed."""
    monkeypatch.setattr(sessions, "_REPEAT_EVERY", 1)
    observed: list[Run] = []

    def reduce_failure(*args: Any, **more: Any) -> Any:
        observed.append(more["observed"])
        return reduce(*args, **more)

    reduce = sessions.reduce_failure
    monkeypatch.setattr(sessions, "reduce_failure", reduce_failure)
    with pytest.raises(Failure) as failure:
        check(session, "raises_at_its_fifth_call")(Case((call(2), call(3), call(4))))
    assert failure.value.kind is Kind.RAISED
    assert [rank.calls[-1].status for rank in observed[0].ranks] == ["raised", "raised"]


def test_what_ran_before_is_found_past_a_case_that_was_refused(session: Session) -> None:
    """In one run, ranks stop at a refusal: a refused case among those before would hide all after it."""
    checker = check(session, "wrong_after_three_rows")
    assert checker(Case((call(3),))).holds
    assert checker(Case((call(2, np.zeros(8, np.int64)),))).refused == "no table"
    with pytest.raises(Failure) as failure:
        checker(Case((call(7),)))
    (found,) = failure.value.counterexamples
    assert found.kind is Kind.ROW_DEPENDENCE
    assert [call.batch for call in found.case.calls] == [3, 7]
