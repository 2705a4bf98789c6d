"""What the CUDA-graph property makes of a capture and of a replay that go wrong. Its ranks need a GPU; its verdict does
not, so the outcomes are given here as the ranks would tell them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from properties import test_cuda_graph as property_under_test
from refimpl.case import Call, Case
from refimpl.ranks import executor
from refimpl.ranks.outcome import CallOutcome, RankOutcome, Run
from refimpl.session import Failure
from refimpl.verdict.judge import Judgement, Tally
from refimpl.verdict.kinds import Kind
from refimpl.vocab.layouts import even_layout

CASE = Case((Call(even_layout(4, 2), "float32", np.zeros((1, 4), np.uint32)),))


class Check:
    """A check whose plain run holds and whose replayed run ended as given."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.failed: tuple[Kind, str] | None = None

    def __call__(self, case: Case) -> Judgement:
        return Judgement(tally=Tally())

    def run(self, case: Case, graph: bool) -> Run:
        assert graph
        return self._run

    def fail(self, kind: Kind, message: str, case: Case, run: Run) -> None:
        self.failed = kind, message
        raise AssertionError(message)


def ended(*raised: tuple[str, str]) -> Run:
    outcomes = [CallOutcome(status="raised", error_type=name, message=words) for name, words in raised]
    return Run(tuple(RankOutcome((outcome,), None) for outcome in outcomes), 10.0)


def verdict(run: Run) -> Any:
    check = Check(run)
    with pytest.raises((AssertionError, pytest.skip.Exception, Failure)) as caught:
        property_under_test.check_replayed(check, CASE)  # type: ignore[arg-type]
    return caught.value, check.failed


def test_a_path_that_cannot_be_captured_is_skipped_with_its_reason() -> None:
    words = "RuntimeError: operation not permitted when stream is capturing"
    name = executor.CannotBeCaptured.__name__
    end, failed = verdict(ended((name, words), (name, words)))
    assert isinstance(end, pytest.skip.Exception) and words in str(end) and failed is None


@pytest.mark.parametrize(
    "raised",
    [
        [("RuntimeError", "a captured tensor was freed")] * 2,
        [("AcceleratorError", "captures_underway.empty() INTERNAL ASSERT FAILED")] * 2,
        [("CannotBeCaptured", "RuntimeError: not permitted"), ("RuntimeError", "illegal memory access")],
    ],
)
def test_whatever_else_goes_wrong_is_a_failure(raised: list[tuple[str, str]]) -> None:
    end, failed = verdict(ended(*raised))
    assert not isinstance(end, pytest.skip.Exception)
    assert failed is not None and failed[0] is Kind.RAISED and "replayed from a CUDA graph" in failed[1]
