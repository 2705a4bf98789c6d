"""Live engines: an engine's own local reduction against its own full gather. Run with ``--engine=NAME`` only."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from properties.strategies.effort import many
from properties.strategies.engine_options import Engine, engine_cases
from refimpl import bits
from refimpl.engine_case import EngineCase, EngineOptions
from refimpl.engine_check import EngineChecker
from refimpl.verdict import traffic

SHAPES = [(batch, width) for width in (192, 768, 3072) for batch in (1, 4)]


def _engine(check_engine: EngineChecker) -> Engine:
    return Engine(check_engine.name, check_engine.facts.features, check_engine.tp_size)


def _explore(check_engine: EngineChecker, supported: bool, effort: settings) -> None:
    @effort
    @given(case=engine_cases(_engine(check_engine), supported))
    def explore(case: EngineCase) -> None:
        check_engine.explore(case)

    explore()
    check_engine.conclude()


@pytest.mark.obligations("O0")
def test_supported_use(check_engine: EngineChecker) -> None:
    """A rising table or none, a positive scale, a batch of one or more, matching sizes: no divergence at all."""
    _explore(check_engine, True, many(16))


def test_any_use(check_engine: EngineChecker) -> None:
    """Options beyond the supported use, one or two at a time: every distinct divergence, once."""
    _explore(check_engine, False, many(24))


def test_fast_path_is_taken(check_engine: EngineChecker) -> None:
    """The local answer sends no more for a wider vocabulary: full logits are not gathered behind its back."""
    cases = [plain_case(check_engine, batch, width) for batch, width in SHAPES]
    wrong = traffic.growth(SHAPES, [check_engine.traffic(case) for case in cases])
    if wrong:
        check_engine.not_taken(cases[-1], wrong)
    check_engine.conclude()


def plain_case(check_engine: EngineChecker, batch: int, width: int) -> EngineCase:
    rng = np.random.default_rng(width)
    size = width * check_engine.tp_size
    weight = bits.encode(rng.standard_normal((size, 8)), "bfloat16")
    states = bits.encode(rng.standard_normal((batch, 8)), "bfloat16")
    options = EngineOptions(vocab_size=size, padding_size=64, dtype="bfloat16")
    return EngineCase(check_engine.name, check_engine.tp_size, options, weight, states)
