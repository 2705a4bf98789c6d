"""Live engines: an engine's own top-k against that of its own full logits. Run with ``--engine=NAME`` only.

The contract is `refimpl.topk.contract`: values in falling order, equal ones by the lowest id.
"""

from __future__ import annotations

import pytest
from hypothesis import given

from properties.strategies.effort import many
from properties.strategies.engine_options import Engine, topk_cases
from properties.test_engine_parity import SHAPES, plain_case
from refimpl.engine_case import EngineCase
from refimpl.engine_check import EngineChecker
from refimpl.verdict import traffic


@pytest.fixture
def check_engine_topk(check_engine: EngineChecker) -> EngineChecker:
    if "top_k" not in check_engine.facts.features:
        pytest.skip(f"{check_engine.facts.title} has no get_top_k_tokens: there is no fast top-k to compare")
    check_engine.subject = "top-k"
    return check_engine


def test_top_k(check_engine_topk: EngineChecker) -> None:
    """Values and ids, in the supported use and one or two steps outside of it: every distinct divergence, once."""
    check = check_engine_topk

    @many(32)
    @given(case=topk_cases(Engine(check.name, check.facts.features, check.tp_size)))
    def explore(case: EngineCase) -> None:
        check.explore(case)

    explore()
    check.conclude()


def test_top_k_fast_path_is_taken(check_engine_topk: EngineChecker) -> None:
    """It sends no more for a wider vocabulary: full logits are not gathered behind its back."""
    check = check_engine_topk
    cases = [plain_case(check, batch, width).changed(k=4) for batch, width in SHAPES]
    wrong = traffic.growth(SHAPES, [check.traffic(case) for case in cases])
    if wrong:
        check.not_taken(cases[-1], wrong)
    check.conclude()
