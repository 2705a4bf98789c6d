"""Top-k: seeded bugs are refuted by the properties with the right kind and a small case; the parts do what they say."""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings

from properties.strategies.topk import k_of
from refimpl import bits, cli, loading
from refimpl.case import Call
from refimpl.ranks.journal import Journal
from refimpl.ranks.outcome import Run
from refimpl.ranks.runtime import Ranks
from refimpl.session import Session
from refimpl.topk.case import TopKCall, TopKCase, is_topk_case
from refimpl.topk.checker import TopKChecker, TopKFailure
from refimpl.topk.full_gather_topk import greatest
from refimpl.topk.judge import ENTRY_KINDS, KINDS, TopKFinding
from refimpl.topk.oracle import oracle_topk
from refimpl.topk.reduce import TopKCounterexample
from refimpl.topk.report import write_case
from refimpl.vocab.d2t import offsets
from refimpl.vocab.layouts import layout_from_sizes
from tests.topk_mutants import KINDS as MUTANTS

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with Ranks(backend="gloo", limit=3.0) as ranks:
        journal = Journal(tmp_path_factory.mktemp("journal"), "topk")
        yield Session(ranks, journal, reduce_seconds=6.0)
        journal.close(0)


def _properties() -> list[Callable[..., Any]]:
    found = inspect.getmembers(importlib.import_module("properties.test_topk"), inspect.isfunction)
    order = (
        "every_form",
        "padding",
        "nans",
        "zeros",
        "tables",
        "beyond_the_shard",
        "in_turn",
        "beyond_the_voc",
        "traffic",
    )
    tests = [function for name, function in found if name.startswith("test_")]
    return sorted(tests, key=lambda test: next(place for place, word in enumerate(order) if word in test.__name__))


def first_failure(session: Session, path: str) -> TopKFailure | None:
    for function in _properties():
        function._hypothesis_internal_use_settings = settings(  # type: ignore[attr-defined]
            function._hypothesis_internal_use_settings,  # type: ignore[attr-defined]
            derandomize=True,
            database=None,
        )
        try:
            function(check_topk=TopKChecker(session, path, 2, function.__name__))
        except TopKFailure as failure:
            return failure
    return None


@pytest.mark.parametrize("name", MUTANTS)
def test_every_seeded_bug_is_refuted(session: Session, name: str) -> None:
    failure = first_failure(session, f"tests.topk_mutants:{name}")
    assert failure is not None, f"no property refutes {name}"
    assert failure.kind in MUTANTS[name]
    if failure.kind != "communication":
        # torch.topk keeps the order of equals in short rows.
        limits = (2, 2000) if name.startswith("unstable") else (2, 8)
        for entry in failure.counterexample.case.calls:
            assert (entry.call.batch, entry.call.layout.vocab_size) <= limits, str(failure)


def test_the_report_says_it_on_one_screen(session: Session) -> None:
    failure = first_failure(session, "tests.topk_mutants:local_ids")
    assert failure is not None
    report = str(failure)
    assert len(report.splitlines()) <= 40
    assert max(len(line) for line in report.splitlines()[:-1]) <= 100
    assert "NumPy" in report
    assert "path, rank 1" in report
    *_, before, command = report.splitlines()
    assert before == "to replay exactly this case:"
    file = ROOT / command.removeprefix("argmax-parity replay ")
    case, note = TopKCase.load(file)
    assert case.digest == failure.counterexample.case.digest
    assert (note["kind"], note["path"]) == (failure.kind, "tests.topk_mutants:local_ids")


def test_the_order_of_the_contract() -> None:
    """By hand: NaNs, then falling values, equal zeros, equal entries by id; with a table by target."""
    row = np.array([[0.0, np.nan, -0.0, 2.0, -np.inf, np.nan]])
    assert oracle_topk(row, 6)[1].tolist() == [[1, 5, 3, 0, 2, 4]]
    d2t = offsets(np.array([7, 6, 3, 2, 1, 0]))
    assert oracle_topk(row, 6, d2t)[1].tolist() == [[0, 6, 2, 3, 7, 1]]
    for k in range(1, 7):
        values, ids = greatest(torch.from_numpy(row), torch.arange(6), k)
        assert ids.tolist() == [[1, 5, 3, 0, 2, 4][:k]]
        assert values.shape == (1, k)


def test_the_reference_agrees_with_numpy_in_every_dtype() -> None:
    rng = np.random.default_rng(3)
    for dtype in bits.DTYPES:
        patterns = rng.choice(bits.landmarks(dtype), (200, 40))
        signed = patterns.view(np.int32 if dtype == "float32" else np.int16)
        logits = torch.from_numpy(signed).view(getattr(torch, dtype))
        ids = torch.from_numpy(rng.permutation(100)[:40])
        _, columns = oracle_topk(bits.decode(patterns, dtype), 17, offsets(ids.numpy()))
        assert np.array_equal(greatest(logits, ids, 17)[1].numpy(), columns)


def test_a_first_k_is_the_start_of_a_greater_one(session: Session) -> None:
    rng = np.random.default_rng(4)
    call = Call(layout_from_sizes((3, 6)), "bfloat16", rng.choice(bits.landmarks("bfloat16"), (50, 9)))
    check = TopKChecker(session, "gather_topk_candidates", 2, "test")
    run = check.run(TopKCase(tuple(TopKCall(call, k) for k in range(1, 10))))
    answers = [outcome.tokens for outcome in run.ranks[0].calls]
    assert all(answer is not None for answer in answers)
    for k, answer in enumerate(answers, 1):
        assert np.array_equal(answer, answers[-1][:, :, :k])  # type: ignore[index]


def test_words_for_k() -> None:
    assert [k_of(k, [3, 0, 5]) for k in ("widest", "beyond", "most", "all", "over", 2, 99)] == [5, 6, 7, 8, 9, 2, 8]
    assert [k_of(k, [1, 0]) for k in ("widest", "beyond", "most", "all", "over")] == [1, 1, 1, 1, 2]


def test_kinds_are_documented() -> None:
    page = (ROOT / "docs/topk.md").read_text()
    for kind, text in ENTRY_KINDS.items():
        assert f"| `{kind}` | {text} |" in page
    assert set(ENTRY_KINDS) <= set(KINDS)


def test_paths_are_found() -> None:
    assert loading.TOPK_PATHS == ("full_gather_topk", "gather_topk_candidates")
    assert all(callable(loading.load_path(path)) for path in loading.TOPK_PATHS)


def run_pytest(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "properties/test_topk.py", "--tp=2", "-p", "no:cacheprovider", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (
            "--topk-path=nothing",
            "nor file.py:name nor one of full_gather_topk, gather_topk_candidates",
        ),
        ("--topk-path=gather_pairs", "it is an argmax path, of another contract; give it as --path=gather_pairs"),
        ("--path=gather_topk_candidates", "it is a top-k path, of another contract; give it as --topk-path="),
    ],
)
def test_a_wrong_path_is_said_in_one_sentence(option: str, said: str) -> None:
    done = run_pytest(option)
    assert done.returncode == 4
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_failing_run_prints_the_report() -> None:
    done = run_pytest("--topk-path=tests.topk_mutants:local_ids", "-k", "beyond_the_shard")
    assert done.returncode == 1
    assert "\npath tests.topk_mutants:local_ids\n" in done.stdout
    assert "\nto replay exactly this case:\nargmax-parity replay " in done.stdout
    assert "Traceback" not in done.stdout


def test_a_known_failure_is_expected(tmp_path: Path) -> None:
    path, known = "tests.topk_mutants:local_ids", tmp_path / "known.txt"
    known.write_text(f"properties/test_topk.py::test_k_beyond_the_shard[{path}-tp2]  # ids of the shard\n")
    paths = (f"--topk-path={path}", "--topk-path=gather_topk_candidates")
    done = run_pytest(*paths, "-k", "beyond_the_shard", f"--known-divergences={known}")
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout and "1 xfailed" in done.stdout


# -- replay -----------------------------------------------------------------------------------------------------------


def replay(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = cli.main(["replay", *arguments])
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err
    return status, (said.out + said.err).strip()


def _failing(folder: Path, width: int = 4, batch: int = 1, k: int = 2) -> Path:
    """A file about a path that returns local ids, which the second shard's are not."""
    logits = bits.encode(np.tile(np.arange(2.0 * width), (batch, 1)), "bfloat16")
    case = TopKCase((TopKCall(Call(layout_from_sizes((width, width)), "bfloat16", logits), k),))
    found = TopKCounterexample(case, TopKFinding("wrong-entry", 0, "row 0", (0,)), Run((), 1.0))
    return write_case(found, folder, property_id="a test", path="tests.topk_mutants:local_ids", backend="gloo")


@pytest.mark.parametrize(("width", "suffix"), [(4, ".json"), (300, ".safetensors")])
def test_a_case_is_replayed_with_its_path_or_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], width: int, suffix: str
) -> None:
    file = _failing(tmp_path, width, batch=width // 4)
    assert file.suffix == suffix
    status, said = replay(capsys, str(file))
    assert (status, said.splitlines()[0]) == (1, "still fails: top-k path tests.topk_mutants:local_ids on tp 2")
    for option in ("--topk-path", "--path"):
        status, said = replay(capsys, str(file), f"{option}=gather_topk_candidates")
        words = "gives the full gather's values and ids, 4 times"
        assert (status, said) == (0, f"fixed: top-k path gather_topk_candidates on tp 2 {words}")


def test_a_k_beyond_the_vocabulary_is_fixed_by_refusing_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, said = replay(capsys, str(_failing(tmp_path, k=9)), "--topk-path=gather_topk_candidates")
    assert (status, said) == (0, "fixed: top-k path gather_topk_candidates on tp 2 refuses k, as it must, 4 times")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ({"k": [0]}, "k is 0, it must be a whole number of 1 or more"),
        ({"k": [True]}, "k is True, it must be"),
        ({"k": ["2"]}, "k is '2', it must be"),
        ({"k": [1, 2]}, "k is [1, 2], it must be a list of one number for each of 1 call(s)"),
        ({"k": None}, "k is None, it must be a list"),
        ({"format": "argmax-parity/topk-case/9"}, "its format is 'argmax-parity/topk-case/9', this release reads"),
        ({"case": {}}, "it is no case: 'format' is missing in it"),
        ({"case": None}, "it is no case: TypeError"),
    ],
)
def test_a_damaged_file_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: dict[str, Any], said: str
) -> None:
    file = _failing(tmp_path)
    document = json.loads(file.read_text())
    document["topk_case"] |= damage
    file.write_text(json.dumps(document))
    status, words = replay(capsys, str(file))
    assert status == 4
    assert words.startswith(f"could not run: {file}: {said}")
    assert len(words.splitlines()) == 1


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        ({"topk_case": 5}, (), "it is no top-k case: TypeError"),
        ({"path": None}, (), "it names no path; give one with --topk-path"),
        ({"kind": "wrong-maximum-of-all"}, (), "kind is 'wrong-maximum-of-all', which is no failure kind of top-k"),
        ({"backend": "mpi"}, (), "backend is 'mpi', it must be auto, nccl or gloo"),
        ({}, ("--path=gather_pairs",), "it is an argmax path, of another contract"),
        ({}, ("--path=nothing",), "'nothing' is neither package.module:name nor file.py:name nor one of full_gather_t"),
    ],
)
def test_what_a_file_or_command_names_wrongly_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], options: tuple[str, ...], said: str
) -> None:
    file = _failing(tmp_path)
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    status, words = replay(capsys, str(file), *options)
    assert status == 4
    assert words.startswith(f"could not run: {file}: {said}")
    assert len(words.splitlines()) == 1


def test_a_cut_file_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in (_failing(tmp_path), _failing(tmp_path, 300, 40)):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        status, words = replay(capsys, str(file))
        assert status == 4
        assert words.startswith(f"could not run: {file}: ")
        assert len(words.splitlines()) == 1


def test_the_case_that_ran_when_a_run_ended_is_one_of_top_k(tmp_path: Path) -> None:
    case, _ = TopKCase.load(_failing(tmp_path))
    journal = Journal(tmp_path / "journal", "topk")
    journal.begin(case, {"path": "gather_topk_candidates"})
    running = journal.folder / "running.safetensors"
    assert is_topk_case(running)
    again, note = TopKCase.load(running)
    assert (again.digest, again.ks, note["path"]) == (case.digest, [2], "gather_topk_candidates")
    journal.close(0)
