"""Top-k of a live engine, on a stand-in engine and real ranks: sound it holds, and every seeded bug is named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from properties.strategies.engine_options import Engine, topk_cases
from properties.test_engine_parity import SHAPES, plain_case
from refimpl import bits, cli
from refimpl.engine_case import EngineCase, EngineOptions
from refimpl.engine_check import EngineChecker
from refimpl.ranks.engine_runtime import both
from refimpl.ranks.journal import Journal
from refimpl.ranks.runtime import Ranks
from refimpl.session import Checker, Session
from refimpl.verdict import traffic
from refimpl.verdict.engine_judge import judge_engine
from refimpl.verdict.report import render, write_case
from tests import engine_stand_in

SOUND = "tests.engine_stand_in"
# By fault: the kinds that it may be named.
FAULTS = {
    "local ids": {"wrong-entry", "wrong-tie", "repeated-id", "nan-rule", "value-mismatch"},
    "padding candidates": {"id-out-of-range"},
    "ties by the highest id": {"wrong-tie", "nan-rule"},
    "one value a row": {"value-mismatch"},
    "one rank differs": {"rank-disagreement"},
    "smallest": {"wrong-entry", "value-mismatch"},
    "no bias": {"wrong-entry", "value-mismatch"},
}


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(backend="gloo", engine=SOUND) as found:
        yield found


def _checker(ranks: Ranks, folder: Path, fault: str | None) -> EngineChecker:
    engine = SOUND
    if fault is not None:
        file = folder / "faulty.py"
        file.write_text(
            "from tests import engine_stand_in\n"
            f"engine_stand_in.API = engine_stand_in.stand_in({fault!r})\n"
            "from tests.engine_stand_in import *\n"
        )
        engine = str(file)
    session = Session(ranks, Journal(folder / "journal", "test"), reduce_seconds=20.0)
    return EngineChecker(Checker(session, "own", 2, "a test"), session, engine_stand_in.facts(), engine)


def _explore(check: EngineChecker, examples: int, until: set[str]) -> None:
    """The property, until one of these kinds was found."""

    @settings(max_examples=examples, derandomize=True, database=None, deadline=None)
    @given(case=topk_cases(Engine(check.name, check.facts.features, check.tp_size)))
    def explore(case: EngineCase) -> None:
        if not until & {found.counterexample.kind.value for found in check.found.values()}:
            check.explore(case)

    explore()


def test_a_sound_top_k_differs_only_by_the_sizes_of_its_processor(ranks: Ranks, tmp_path: Path) -> None:
    check = _checker(ranks, tmp_path, None)
    _explore(check, 80, set())
    assert all(name.startswith("full-path") for name in check.found), list(check.found)
    assert all(found.needs[1] & {"larger-processor", "smaller-processor"} for found in check.found.values())
    assert check.tally.hidden.rows > 150
    assert check.tally.hidden.tied_rows > 50
    assert any("non-positive" in message for message in check.tally.refused)
    assert any("neither answers" in message and "k is N" in message for message in check.tally.refused)


@pytest.mark.parametrize("fault", FAULTS)
def test_every_seeded_bug_of_top_k_is_named(ranks: Ranks, tmp_path: Path, fault: str) -> None:
    check = _checker(ranks, tmp_path, fault)
    _explore(check, 150, FAULTS[fault])
    found = next((f.counterexample for f in check.found.values() if f.counterexample.kind.value in FAULTS[fault]), None)
    assert found is not None, list(check.found)
    origin = found.origin
    assert isinstance(origin, EngineCase)
    assert (origin.num_rows, origin.options.scale, origin.options.soft_cap) == (1, 1.0, None)
    assert origin.options.vocab_size <= 16
    text = render(
        found,
        property_id="a test",
        head="stand-in",
        path="own",
        backend="gloo",
        replay_command="argmax-parity replay x",
    )
    assert "engine, rank 1" in text
    assert text.splitlines()[-1] == "argmax-parity replay x"


def test_full_logits_gathered_behind_top_k_are_noticed(ranks: Ranks, tmp_path: Path) -> None:
    for fault in (None, "gathers everything"):
        folder = tmp_path / str(fault)
        folder.mkdir()
        check = _checker(ranks, folder, fault)
        sent = [check.traffic(plain_case(check, batch, width).changed(k=4)) for batch, width in SHAPES]
        assert ("grow with the vocabulary" in str(traffic.growth(SHAPES, sent))) == (fault is not None)


def _case(row: list[float], engine: str = SOUND, **options: Any) -> EngineCase:
    weight = bits.encode(np.array([row]).T, "float32")
    given_options = EngineOptions(**{"vocab_size": len(row), "padding_size": 2, **options})
    return EngineCase(engine, 2, given_options, weight, bits.encode(np.ones((1, 1)), "float32"))


def test_values_and_log_probabilities_are_compared(ranks: Ranks) -> None:
    for log_probs in (False, True):
        case = _case([0.5, -1.0, 3.0, 0.5], k=3, log_probs=log_probs)
        answers = both(ranks, case)
        assert judge_engine(case, answers).holds
        tokens = answers.local.ranks[1].calls[0].tokens
        assert tokens is not None
        assert tokens[0].tolist() == [[2, 0, 3]]
        values = bits.decode(tokens[1].astype(np.uint32), "float32")[0]
        shift = np.log(np.exp([0.5, -1.0, 3.0, 0.5]).sum()) if log_probs else 0.0
        np.testing.assert_allclose(values, np.array([3.0, 0.5, 0.5]) - shift, rtol=1e-6)


def test_what_a_top_k_needs_is_named() -> None:
    plain = _case([0.0] * 6, k=2)
    assert (plain.departures, plain.needs) == ((), ())
    assert plain.changed(k=4).needs == ("k-beyond-shard",)
    assert plain.changed(k=7).needs == ("k-beyond-vocabulary",)
    assert plain.changed(scale=0.5, soft_cap=3.0).needs == ("cap", "scaling")
    assert plain.changed(scale=0.5, head_dtype="bfloat16").needs == ("scaling", "16-bit")
    assert plain.changed(head_dtype="bfloat16", log_probs=True).needs == ("log-probs",)
    assert plain.changed(k=None, scale=0.5).needs == ()


def test_a_failing_top_k_is_replayed(ranks: Ranks, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check = _checker(ranks, tmp_path, "ties by the highest id")
    check.explore(_case([1.0, 0.0, 1.0, 1.0], check.name, k=2))
    (found,) = check.found.values()
    file = write_case(found.counterexample, tmp_path, property_id="a test", path="own", backend="gloo")
    assert cli.main(["replay", str(file)]) == 1
    assert "wrong-tie" in capsys.readouterr().out
    (tmp_path / "faulty.py").write_text("from tests.engine_stand_in import *\n")
    assert cli.main(["replay", str(file)]) == 0
    assert capsys.readouterr().out.startswith("fixed: both answers of stand-in 1.0 on tp 2")
    file.write_text(file.read_text().replace('"k": 1', '"k": 0').replace('"k": 2', '"k": 0'))
    assert cli.main(["replay", str(file)]) == 4
    assert "k is 0, it must be from 1 to" in capsys.readouterr().err
