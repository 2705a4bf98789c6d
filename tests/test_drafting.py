"""Drafting loops that break off, or go wrong, at a later step: a failure of its kind with step, rank and replay."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from properties.test_drafting_loop import loop_of
from properties.test_drafting_loop import test_drafting_loop as drafting_loop
from refimpl.case import CaseError
from refimpl.draft_case import DraftCase, Loops, is_draft_case
from refimpl.head_case import HeadRef
from refimpl.head_check import HeadChecker
from refimpl.head_replay import replay_head_case
from refimpl.ranks.head_runtime import OWN
from refimpl.ranks.journal import Journal
from refimpl.ranks.limits import Limits
from refimpl.ranks.runtime import Ranks
from refimpl.session import Failure, Session
from refimpl.verdict.kinds import Kind
from refimpl.verdict.report import render, write_case
from refimpl.vocab.layouts import even_layout
from tests import loop_mutants
from tests.test_command_line import pytest_run
from tests.test_heads import checker

LIMIT = 4.0
HEAD = "tests.head_mutants.ids:Reduced"
# What the report must say of the rank, by kind: where the loop was, for whom.
WHERE = {
    "raises_on_one_rank": "rank 1 in draft step 2 of the path",
    "raises": "rank 0 in draft step 2 of the path; rank 1 in draft step 2 of the path",
    "sleeps": "rank 1 in draft step 2 of the path",
    "is_killed": "rank 1 in draft step 2 of the path",
    "returns_int32": "rank 0 in draft step 2 of the path; rank 1 in draft step 2 of the path",
    "one_rank_differs": "draft step 2, sequence 0: drafted rank 0: ",
    "all_ranks_differ": "draft step 2, sequence 0: drafted ",
    "refuses": "draft step 2: refused (no more than two steps), though steps of the same form were answered",
    "writes_into_its_input": "draft step 2: rank 0: row 0, local column 0 was changed",
}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with Ranks(backend="gloo", limit=LIMIT) as ranks:
        journal = Journal(tmp_path_factory.mktemp("journal"), "drafting")
        yield Session(ranks, journal, reduce_seconds=5.0)
        journal.close(0)


def failure_of(check: HeadChecker) -> Failure:
    with pytest.raises(Failure) as found:
        drafting_loop(check)
    return found.value


def test_every_seeded_bug_has_its_place() -> None:
    assert set(WHERE) == set(loop_mutants.PATHS)


@pytest.mark.parametrize("name", WHERE)
def test_a_path_that_fails_at_a_later_step(session: Session, name: str, tmp_path: Path) -> None:
    path = f"tests.loop_mutants:{name}"
    check = checker(session, "small_eagle3", path)
    failure = failure_of(check)
    assert failure.kind is loop_mutants.PATHS[name]
    (found,) = failure.counterexamples
    assert isinstance(found.origin, DraftCase)
    if failure.kind is not Kind.HANG:
        assert len(found.origin.sequences) == 1 and found.origin.steps == 3
    assert check.tally.failed[found.identity] == 1
    file = write_case(found, tmp_path, property_id="x", path=path, backend="gloo")
    command = f"argmax-parity replay {file}"
    text = render(found, property_id="x", head="small_eagle3", path=path, backend="gloo", replay_command=command)
    said = " ".join(text.split())
    assert WHERE[name] in said, text
    assert text.splitlines()[-1] == command
    assert "nan" not in said.lower() and len(text.splitlines()) <= 40


@pytest.mark.parametrize(("name", "path"), [("answer_raises", OWN), ("logits_raise", "gather_pairs")])
def test_a_head_that_raises_at_a_later_step(session: Session, name: str, path: str) -> None:
    failure = failure_of(checker(session, f"tests.loop_mutants:{name}", path))
    assert failure.kind is Kind.RAISED
    whose = "the path" if path == OWN else "the full gather"
    assert f"rank 0 in draft step 2 of {whose}" in failure.counterexamples[0].notes[1]


def test_a_loop_is_replayed(session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = "tests.loop_mutants:raises_on_one_rank"
    failure = failure_of(checker(session, "small_eagle3", path))
    file = write_case(failure.counterexamples[0], tmp_path, property_id="x", path=path, backend="gloo")
    assert is_draft_case(file)
    assert replay_head_case(file, path=None, backend=None, limits=Limits(LIMIT)) == 1
    said = capsys.readouterr().out
    assert said.startswith(f"still fails: the drafting loop of head small_eagle3 with {path} on tp 2")
    assert "draft step 2" in said
    assert replay_head_case(file, path="gather_pairs", backend=None, limits=Limits(LIMIT)) == 0
    assert capsys.readouterr().out.startswith("fixed: the drafting loop")


def test_a_refusal_from_the_first_step_on_is_no_failure(session: Session, tmp_path: Path) -> None:
    check = checker(session, "small_eagle3", "tests.loop_mutants:declines")
    drafting_loop(check)
    assert check.refusal and not check.tally.failed and not check.tally.drafted


def test_one_sequence_drafts_as_it_does_among_others(session: Session) -> None:
    check = checker(session, HEAD.replace("Reduced", "right_masked"), OWN)
    case = loop_of(check, 9, seed=3)
    whole = Loops.of(check.drafting.run(case)[0])
    alone = Loops.of(check.drafting.run(DraftCase(case.head, case.layout, (4,), 2, case.seed))[0])
    assert whole is not None and alone is not None
    assert (whole.full[0].drafted[:2, 4:5] == alone.full[0].drafted).all()
    assert (whole.local[1].greedy[:2, 4:5] == alone.local[1].greedy).all()


def test_a_case_survives_both_forms(tmp_path: Path) -> None:
    case = DraftCase(HeadRef("small_eagle3", 1 << 20), even_layout(9, 2), (3, 5), 4, 1)
    (tmp_path / "case.json").write_text(json.dumps({"draft_case": case.to_json()}))
    (tmp_path / "case.safetensors").write_bytes(case.to_bytes({"path": "own"}))
    for file in tmp_path.iterdir():
        assert is_draft_case(file)
        again, _ = DraftCase.load(file)
        assert again == case and again.digest == case.digest


@pytest.mark.parametrize(
    "change",
    [{"steps": 0}, {"sequences": []}, {"sequences": [-1]}, {"seed": -1}, {"bounds": [[0, 1], [2, 3]]}, {"steps": "x"}],
)
def test_a_damaged_case_is_one_sentence(change: dict[str, object]) -> None:
    case = DraftCase(HeadRef("small_eagle3"), even_layout(9, 2), (3, 5), 4, 1)
    with pytest.raises(CaseError) as found:
        DraftCase.from_json({**case.to_json(), **change})
    assert "\n" not in str(found.value)


def test_a_run_reports_it_and_names_the_replay() -> None:
    path = "tests.loop_mutants:raises_on_one_rank"
    result = pytest_run("properties/test_drafting_loop.py", "--tp=2", f"--path={path}")
    assert result.returncode == 1
    assert "raised-on-some-ranks:ValueError: some ranks raised" in result.stdout, result.stdout
    assert "rank 1: raised ValueError: no more" in result.stdout
    assert "argmax-parity replay .argmax-parity/cases/raised-on-some-ranks-" in result.stdout
    assert "UNKNOWN" not in result.stdout
