"""The adapter of live engines and the suite around it, on a stand-in engine and real ranks; no engine is installed."""

from __future__ import annotations

import inspect
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from fixtures.engines import vllm
from refimpl import bits, engine_comparison, engines
from refimpl.case import CaseError
from refimpl.engine_case import EngineCase, EngineOptions, is_engine_case
from refimpl.engine_check import EngineChecker, Found
from refimpl.ranks.engine_runtime import BothAnswers, ask, both, engine_facts
from refimpl.ranks.journal import Journal
from refimpl.ranks.outcome import CallOutcome, Died, RankOutcome, Run
from refimpl.ranks.runtime import Ranks
from refimpl.session import Checker, Failure, Session
from refimpl.verdict import traffic
from refimpl.verdict.engine_judge import NEITHER, judge_engine
from refimpl.verdict.engine_reduce import EngineReducer
from refimpl.verdict.judge import describe
from refimpl.verdict.kinds import Kind
from refimpl.verdict.report import write_case
from refimpl.vocab import d2t as tables
from tests import engine_stand_in

ROOT = Path(__file__).resolve().parents[1]
SOUND = "tests.engine_stand_in"


def _case(logits: list[list[float]], engine: str = SOUND, **more: object) -> EngineCase:
    """Given rows of logits at tp 2, padded to a multiple of 4, by one-hot hidden states."""
    options: dict[str, object] = {"vocab_size": len(logits[0]), "padding_size": 4}
    arrays = {name: more.pop(name) for name in ("bias", "d2t") if name in more}
    return EngineCase(
        engine,
        2,
        EngineOptions(**{**options, **more}),  # type: ignore[arg-type]
        bits.encode(np.array(logits).T, "float32"),
        bits.encode(np.eye(len(logits)), "float32"),
        **arrays,  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(backend="gloo", engine=SOUND) as found:
        yield found


def _faulty(ranks: Ranks, folder: Path, fault: str) -> str:
    """An adapter of the stand-in with one fault, for ranks that have not seen the sound one."""
    file = folder / f"{fault.replace(' ', '_')}.py"
    file.write_text(
        "from tests import engine_stand_in\n"
        f"engine_stand_in.API = engine_stand_in.stand_in({fault!r})\n"
        "from tests.engine_stand_in import *\n"
    )
    ranks.retire()
    return str(file)


# -- what is installed -------------------------------------------------------------------------------------------


def test_what_a_release_lacks_is_found_and_said() -> None:
    found = vllm.facts_of("stand-in", engine_stand_in.stand_in(), ("1.0",))
    there = {"table", "soft_cap", "scale", "processor_vocabulary", "padding", "bias", "top_k", "log_probs"}
    assert found.features == there
    assert found.missing == ("logits as input", "added vocabulary", "a dtype of the projection")
    assert "not drawn: logits as input" in found.words
    assert "run against" not in found.words
    without = vllm.facts_of("stand-in", engine_stand_in.stand_in(mixin=None), ("1.0",))
    assert "table" not in without.features and "tables (no LocalArgmaxMixin)" in without.missing


def test_a_release_without_top_k_draws_none() -> None:
    older = type("LogitsProcessor", (engine_stand_in.LogitsProcessor,), {})
    api = replace(engine_stand_in.stand_in(), LogitsProcessor=_Without(older, "get_top_k_tokens"))
    found = vllm.facts_of("stand-in", api, ("1.0",))
    assert not found.features & {"top_k", "log_probs"}
    assert "top-k (no get_top_k_tokens)" in found.missing


class _Without:
    """A class as it looked before it had one of its methods."""

    def __init__(self, whole: Any, name: str) -> None:
        self._whole, self._name = whole, name
        self.__signature__ = inspect.signature(whole)

    def __getattr__(self, name: str) -> Any:
        if name == self._name:
            raise AttributeError(name)
        return getattr(self._whole, name)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._whole(*given, **named)


def test_another_release_is_named_with_those_the_adapter_knows() -> None:
    words = vllm.facts_of("stand-in", engine_stand_in.stand_in(release="9.9"), ("1.0", "1.1")).words
    assert "stand-in 9.9" in words
    assert "the adapter was run against 1.0, 1.1 only" in words


def test_a_release_without_the_method_cannot_be_certified() -> None:
    api = replace(engine_stand_in.stand_in(), LogitsProcessor=object)
    with pytest.raises(engines.EngineUnusable, match=r"no LogitsProcessor\.get_top_tokens"):
        vllm.facts_of("stand-in", api, ("1.0",))


@pytest.mark.parametrize(
    ("name", "words"),
    [("nothing", "there is no engine 'nothing'"), ("missing/engine.py", "does not exist"), ("a-b.c", "no engine")],
)
def test_wrong_names_are_said_without_an_import(name: str, words: str) -> None:
    assert words in str(engines.check_name(name))


def test_an_engine_that_is_not_installed_is_said_in_one_sentence(ranks: Ranks) -> None:
    with pytest.raises(engines.EngineUnusable, match="cannot be imported") as raised:
        engine_facts(ranks, "fixtures.engines.absent")
    assert "\n" not in str(raised.value)


def test_facts_come_from_a_rank(ranks: Ranks) -> None:
    assert engine_facts(ranks, SOUND) == engine_stand_in.facts()


# -- options arrive -------------------------------------------------------------------------------------------------

_ROWS = [[1.0, -2.0, 0.5, 3.0, 3.0], [0.0, -1.0, -1.0, -3.0, -0.5]]


@pytest.mark.parametrize(
    ("options", "logits"),
    [
        ({}, np.array(_ROWS)),
        ({"scale": 0.5}, np.array(_ROWS) * 0.5),
        ({"soft_cap": 2.0}, np.tanh(np.array(_ROWS) / 2) * 2),
        ({"bias": bits.encode(np.arange(5.0), "float32")}, np.array(_ROWS) + np.arange(5.0)),
        ({"padding_size": 64}, np.array(_ROWS)),
        ({"padding_size": 2}, np.array(_ROWS)),
    ],
    ids=["plain", "scale", "soft cap", "bias", "padded to 64", "padded to 2"],
)
def test_options_reach_both_answers(ranks: Ranks, options: dict[str, object], logits: np.ndarray) -> None:
    case = _case(_ROWS, **options)
    answers = both(ranks, case)
    assert answers.logits is not None
    np.testing.assert_allclose(bits.decode(answers.logits, "float32"), logits, rtol=1e-6)
    for run in (answers.full, answers.local):
        for rank in run.ranks:
            np.testing.assert_array_equal(rank.calls[0].tokens, logits.argmax(axis=1))
    assert judge_engine(case, answers).holds


@pytest.mark.parametrize("dtype", bits.DTYPES)
def test_dtypes_and_a_table_reach_both_answers(ranks: Ranks, dtype: str) -> None:
    case = _case(_ROWS, d2t=tables.offsets(np.array([2, 3, 5, 8, 13])), target_vocab_size=20)
    case = case.changed(
        dtype=dtype,
        weight=bits.encode(bits.decode(case.weight, "float32"), dtype),
        hidden_states=bits.encode(bits.decode(case.hidden_states, "float32"), dtype),
    )
    answers = both(ranks, case)
    assert answers.full.ranks[1].calls[0].tokens.tolist() == [8, 2]  # type: ignore[union-attr]
    assert judge_engine(case, answers).holds


# -- what is refused, and what breaks -------------------------------------------------------------------------------


def test_what_the_engine_refuses_up_front_is_refused(ranks: Ranks) -> None:
    case = _case(_ROWS, scale=-1.0)
    judgement = judge_engine(case, both(ranks, case))
    assert judgement.holds
    assert judgement.refused is not None and judgement.refused.startswith("ValueError: ")
    assert "non-positive" in judgement.refused


def test_an_error_that_is_not_on_the_list_is_a_divergence(ranks: Ranks, tmp_path: Path) -> None:
    faulty = _faulty(ranks, tmp_path, "other words")
    case = _case(_ROWS, engine=faulty, scale=-1.0)
    judgement = judge_engine(case, both(ranks, case))
    assert [finding.identity for finding in judgement.findings] == ["raised:ValueError"]
    assert "the full gather answers" in judgement.findings[0].message


def test_where_neither_answers_there_is_nothing_to_compare(ranks: Ranks) -> None:
    case = _case(_ROWS, d2t=tables.offsets(np.array([2, 3, 5, 8, 13])), target_vocab_size=20)
    wrong = case.changed(target_vocab_size=10)  # 13 is beyond both
    judgement = judge_engine(wrong, both(ranks, wrong))
    assert judgement.findings  # the local answer maps it, the full gather cannot scatter there
    shape = case.changed(hidden_states=np.zeros((2, 2, 2), np.uint32), bias=np.zeros(4, np.uint32))
    judgement = judge_engine(shape, both(ranks, shape))
    assert judgement.refused is not None and judgement.refused.startswith(NEITHER)


# -- divergences ------------------------------------------------------------------------------------------------------


def test_a_divergence_is_cut_down_with_its_options(ranks: Ranks, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    logits = rng.integers(-1, 2, (8, 30)).astype(float).tolist()
    table = tables.offsets(rng.permutation(90)[:30])
    case = _case(logits, d2t=table, target_vocab_size=90, scale=0.75, soft_cap=5.0, padding_size=64)
    answers = both(ranks, case)
    finding = judge_engine(case, answers).findings[0]
    found = EngineReducer(ranks, case, answers, finding, 60.0).counterexample()
    small = found.origin
    assert isinstance(small, EngineCase)
    assert found.identity == "wrong-tie/table-order" and "does not rise" in str(found.why)
    assert (small.num_rows, small.options.vocab_size, small.weight.shape) == (1, 2, (2, 1))
    assert (small.options.scale, small.options.soft_cap, small.options.padding_size) == (1.0, None, 2)
    assert tables.targets(small.d2t).tolist() == [1, 0]  # type: ignore[arg-type]
    file = write_case(found, tmp_path, property_id="a test", path="own", backend="gloo")
    assert is_engine_case(file)
    again, note = EngineCase.load(file)
    assert again.digest == small.digest and note["kind"] == "wrong-tie"


def test_what_one_answer_leaves_out_is_found(ranks: Ranks, tmp_path: Path) -> None:
    faulty = _faulty(ranks, tmp_path, "no bias")
    case = _case(_ROWS, engine=faulty, bias=bits.encode(np.array([9.0, 0, 0, 0, 0]), "float32"))
    findings = judge_engine(case, both(ranks, case)).findings
    assert [finding.kind for finding in findings] == [Kind.WRONG_MAXIMUM]


def _growth(ranks: Ranks, engine: str) -> str | None:
    shapes, sent = [(2, 8), (2, 64)], []
    for batch, width in shapes:
        case = _case([[float(i % 7) for i in range(width)]] * batch, engine=engine)
        run = ask(ranks, case, "local", count=True)
        assert run.complete, describe(run)
        seen = run.ranks[0].calls[0].collectives or ()
        sent.append((len(seen), sum(size for _, size in seen)))
    return traffic.growth(shapes, sent)


def test_a_fast_path_that_is_taken_sends_no_more_for_more_ids(ranks: Ranks) -> None:
    assert _growth(ranks, SOUND) is None


def test_full_logits_gathered_behind_the_fast_path_are_noticed(ranks: Ranks, tmp_path: Path) -> None:
    faulty = _faulty(ranks, tmp_path, "gathers everything")
    case = _case(_ROWS, engine=faulty)
    assert judge_engine(case, both(ranks, case)).holds  # the tokens are right
    assert "grow with the vocabulary" in str(_growth(ranks, faulty))


# -- cases ------------------------------------------------------------------------------------------------------------


def test_what_lies_outside_the_supported_use_is_named() -> None:
    plain = _case(_ROWS)
    assert plain.departures == ()
    assert plain.changed(scale=0.0).departures == ("scale",)
    assert plain.changed(processor_vocab_size=4).departures == ("smaller-processor",)
    assert plain.changed(processor_vocab_size=8).departures == ("larger-processor",)
    assert plain.changed(hidden_states=plain.hidden_states[:0]).departures == ("empty-batch",)
    assert plain.changed(hidden_states=plain.hidden_states[None]).departures == ("three-dimensional",)
    assert plain.changed(d2t=np.array([1, -1, 0, 0, 0])).departures == ("table-order",)


def test_files_keep_a_case_exactly(tmp_path: Path) -> None:
    case = _case([[float("nan"), -0.0, float("-inf")]], d2t=np.array([0, 1, 4]), target_vocab_size=9, scale=1 / 3)
    assert EngineCase.from_json(case.to_json()).digest == case.digest
    file = tmp_path / "case.safetensors"
    file.write_bytes(case.to_bytes({"kind": "nan-rule"}))
    again, note = EngineCase.load(file)
    assert again.digest == case.digest and note["kind"] == "nan-rule"
    for key in ("weight", "options", "format"):
        document = case.to_json()
        document[key] = {"vocab_size": "x"} if key == "options" else "?"
        with pytest.raises(CaseError):
            EngineCase.from_json(document)


# -- one property, many divergences --------------------------------------------------------------------------------


def _checker(ranks: Ranks, folder: Path, known: dict[str, str]) -> EngineChecker:
    session = Session(ranks, Journal(folder / str(len(list(folder.iterdir()))), "test"))
    return EngineChecker(Checker(session, "own", 2, "a test"), session, engine_stand_in.facts(), SOUND, known)


def _inverted(logits: list[list[float]]) -> EngineCase:
    return _case(logits, d2t=np.array([1, -1]), target_vocab_size=2)


def test_each_divergence_is_cut_down_once_and_all_of_them_raised(ranks: Ranks, tmp_path: Path) -> None:
    check = _checker(ranks, tmp_path, {})
    check.explore(_case(_ROWS))
    check.explore(_case(_ROWS, scale=-1.0))
    for value in (0.0, 1.0):
        check.explore(_inverted([[value, value]]))
    check.explore(_inverted([[float("nan"), float("nan")]]))
    assert {name: found.met for name, found in check.found.items()} == {
        "wrong-tie/table-order": 2,
        "nan-rule/table-order": 1,
    }
    assert check.tally.refused.total() == 1
    with pytest.raises(Failure) as raised:
        check.conclude()
    assert [c.identity for c in raised.value.counterexamples] == ["wrong-tie/table-order", "nan-rule/table-order"]


def test_an_input_that_kills_the_engine_is_reported_and_the_rest_goes_on(ranks: Ranks, tmp_path: Path) -> None:
    faulty = _faulty(ranks, tmp_path, "dies on an empty batch")
    check = _checker(ranks, tmp_path, {})
    wide = _case(_ROWS, engine=faulty, scale=0.5, padding_size=64)
    check.explore(wide.changed(hidden_states=wide.hidden_states[:0]))
    (found,) = check.found.values()
    small = found.counterexample.origin
    assert found.counterexample.identity == "died:SIGFPE/empty-batch"
    assert isinstance(small, EngineCase) and small.options == EngineOptions(vocab_size=1, padding_size=2)
    assert check.explore(wide).holds
    assert check.tally.hidden.rows == 2


def test_an_input_that_kills_both_answers_is_no_refusal(ranks: Ranks, tmp_path: Path) -> None:
    """It is reported once, cut down, and what comes after it is compared."""
    faulty = _faulty(ranks, tmp_path, "dies on an empty batch either way")
    check = _checker(ranks, tmp_path, {})
    wide = _case(_ROWS, engine=faulty, scale=0.5, padding_size=64)
    for _ in range(2):
        check.explore(wide.changed(hidden_states=wide.hidden_states[:0]))
    (found,) = check.found.values()
    assert (found.counterexample.identity, found.met) == ("died:SIGFPE/empty-batch", 2)
    assert found.counterexample.finding.message.count("died by SIGFPE") == 2
    assert check.explore(wide).holds


def test_by_which_signal_spoilt_memory_ends_a_process_is_no_difference() -> None:
    answered = Run((RankOutcome((CallOutcome("answered", tokens=np.zeros(1, np.int64)),)),), 1.0)
    case = _case([[0.0]])
    for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS):
        died = Run((RankOutcome((), Died(number, None)),), 1.0)
        (finding,) = judge_engine(case, BothAnswers(answered, died)).findings
        assert finding.identity == "died:memory"


def _found(identity: str) -> Found:
    return Found(cast(Any, SimpleNamespace(identity=identity)))


def test_what_is_known_is_no_failure_and_what_is_gone_is_said(ranks: Ranks, tmp_path: Path) -> None:
    check = _checker(ranks, tmp_path, {"wrong-tie/table-order": "two rules", "died:SIGFPE/empty-batch": "long ago"})
    check.explore(_inverted([[0.0, 0.0]]))
    with pytest.raises(pytest.xfail.Exception, match="wrong-tie/table-order"):
        check.conclude()
    assert check.tally.known == {("wrong-tie/table-order", "two rules"): 1}
    assert [reason for _, reason in check.witnesses] == ["two rules"]
    assert any("not seen in 1 cases" in note and "SIGFPE" in note for note in check.session.notes)
    again = _checker(ranks, tmp_path, {"wrong-tie/table-order": "two rules"})
    assert again._known_line(_found("wrong-tie/table-order+added-vocabulary")) == "wrong-tie/table-order"
    assert again._known_line(_found("wrong-tie/added-vocabulary")) is None
    assert again._known_line(_found("wrong-maximum/table-order")) is None
    news = _checker(ranks, tmp_path, {"wrong-tie/table-order": "two rules"})
    news.explore(_inverted([[0.0, 0.0]]))
    news.explore(_inverted([[float("nan"), float("nan")]]))
    with pytest.raises(Failure, match="nan-rule"):
        news.conclude()


# -- the command line -------------------------------------------------------------------------------------------------


def _pytest(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "properties/test_engine_parity.py", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=cwd, check=False)


def test_without_the_option_the_properties_are_deselected_with_a_reason() -> None:
    done = _pytest("--tp=2")
    assert done.returncode == 5, done.stdout
    assert "3 properties of live engines are deselected: they run with --engine=NAME" in done.stdout


def test_known_divergences_of_an_engine_are_read_by_name(tmp_path: Path) -> None:
    known = tmp_path / "known.txt"
    test = "properties/test_engine_parity.py::test_fast_path_is_taken"
    known.write_text(f"{test} communication/supported-use  # mended long ago\n{test}s  # no such test\n")
    done = _pytest(f"--engine={SOUND}", "--tp=2", f"--known-divergences={known}", "-k", "fast_path")
    assert done.returncode == 0, done.stdout
    assert "engine stand-in 1.0: its own full gather" in done.stdout
    assert "known divergence not seen in 0 cases, take it off the list" in done.stdout
    assert f"{test}[{SOUND}-tp2] communication/supported-use" in done.stdout
    assert f"{test}s  matches no test" in done.stdout.replace(f"{test}s matches", f"{test}s  matches")


def test_an_engine_that_cannot_be_used_is_one_sentence_and_status_4() -> None:
    done = _pytest("--engine=fixtures.engines.absent", "--tp=2")
    assert done.returncode == 4
    assert "--engine=fixtures.engines.absent: the adapter cannot be imported" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


# -- the table ------------------------------------------------------------------------------------------------------


def test_an_engine_is_measured_like_a_path(ranks: Ranks) -> None:
    full, local = engine_comparison.measure(ranks, SOUND, (2,))
    same = ["lowest id", "first NaN wins", "equal", "left out", "never wins"]
    assert full == ["full gather", "1 all-gather", "303,872", *same, "lowest target id"]
    assert local == ["local reduction", "1 all-gather", "16", *same, "lowest draft id, mapped"]
    assert len(engine_comparison.columns((2,))) == len(full)


def test_verdicts_of_an_engine_come_from_its_run(tmp_path: Path) -> None:
    report = tmp_path / "engines.xml"
    known = "known: wrong-tie/table-order (3 cases), died:memory/logits-as-input (1 case)"
    report.write_text(
        '<testsuites><testsuite><testcase name="a" time="1.4"/><testcase name="b" time="20">'
        f'<skipped message="{known}"/></testcase><testcase name="c" time="0"><failure/></testcase>'
        '<testcase name="d" time="0"><skipped message="no such method"/></testcase></testsuite></testsuites>'
    )
    assert engine_comparison.verdict(report)[2:] == [
        "| `a` | holds | 1 |",
        "| `b` | diverges as listed: died:memory/logits-as-input, wrong-tie/table-order | 20 |",
        "| `c` | fails | 0 |",
        "| `d` | did not apply: no such method | 0 |",
    ]
    for content, said in (("", "is no JUnit file"), ("<testsuites/>", "holds no test")):
        report.write_text(content)
        with pytest.raises(ValueError, match=said):
            engine_comparison.verdict(report)
