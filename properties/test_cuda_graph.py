"""CUDA graphs: engines capture a decoding step once and replay it, so nothing in it may depend on the captured values.

Runs on nccl only. A path that cannot be captured (it waits for the device, say) is skipped with what it raised.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.strategies import recipes, tables
from refimpl.case import Case
from refimpl.session import Checker
from refimpl.verdict.judge import judge
from refimpl.verdict.kinds import Kind

CANNOT_BE_CAPTURED = f"{Kind.RAISED.value}:CannotBeCaptured"  # by `refimpl.ranks.executor`, on every rank

pytestmark = pytest.mark.obligations("O6")


@pytest.mark.needs_cuda
@given(data=st.data())
def test_replay_with_other_rows(check: Checker, data: st.DataObject) -> None:
    check_replayed(check, data.draw(recipes.replayed(check.tp_size)).expand())


@pytest.mark.needs_cuda
@given(data=st.data())
def test_replay_under_a_table(check: Checker, data: st.DataObject) -> None:
    check_replayed(check, data.draw(recipes.replayed(check.tp_size, tables.RISING)).expand())


def check_replayed(check: Checker, case: Case) -> None:
    """The path must hold on the case as it is, and then replayed from one capture."""
    if check(case).refused is not None:
        return
    run = check.run(case, graph=True)
    for finding in judge(case, run).findings:
        if finding.identity == CANNOT_BE_CAPTURED:
            pytest.skip(f"the path cannot be captured in a CUDA graph: {finding.message.splitlines()[0]}")
        check.fail(finding.kind, f"replayed from a CUDA graph: {finding.message}", case, run)
