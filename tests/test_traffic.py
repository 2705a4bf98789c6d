"""A failing traffic case is cut down by asking smaller ones; one of these that cannot be counted is no verdict."""

from __future__ import annotations

import numpy as np
import pytest

from refimpl.case import Call, Case
from refimpl.ranks.outcome import CallOutcome, RankOutcome, Run
from refimpl.verdict.traffic import Uncountable, growth_over_shapes, plainest
from refimpl.vocab.layouts import even_layout

WHOLE = Case(tuple(Call(even_layout(size, 2), "float32", np.zeros((1, size), np.uint32)) for size in (50, 60, 70)))


def counted(case: Case, least: int) -> Run:
    """A full gather from ``least`` ids on; below, nothing that torch's dispatcher sees."""
    sizes = [call.layout.vocab_size for call in case.calls]
    sent = [(("all_gather", size),) if size >= least else () for size in sizes]
    outcome = RankOutcome(tuple(CallOutcome("answered", collectives=one, issued=len(one)) for one in sent), None)
    return Run((outcome, outcome), 10.0)


@pytest.mark.parametrize(("least", "sizes"), [(1, [4, 8]), (20, [50, 60]), (5, [50, 60])])
def test_the_smallest_case_that_can_be_counted_is_told(least: int, sizes: list[int]) -> None:
    case, run, wrong = plainest(WHOLE, counted(WHOLE, least), lambda smaller: counted(smaller, least))
    assert [call.layout.vocab_size for call in case.calls] == sizes
    assert "bytes grow with the vocabulary" in wrong and growth_over_shapes(case, run) == wrong


def test_smaller_cases_that_do_not_come_through_leave_the_whole() -> None:
    case, _, wrong = plainest(WHOLE, counted(WHOLE, 1), lambda smaller: None)
    assert case is WHOLE and "bytes grow with the vocabulary" in wrong


def test_a_case_that_cannot_be_counted_itself_is_uncountable() -> None:
    with pytest.raises(Uncountable):
        growth_over_shapes(WHOLE, counted(WHOLE, 55))
