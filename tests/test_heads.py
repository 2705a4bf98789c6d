"""Heads: their contract, their names, the shipped ones, and what a run says of a user's own."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from properties.strategies.hidden_states import HiddenStates
from properties.test_drafting_loop import loop_of
from refimpl import bits, head_summary, heads
from refimpl.case import CaseError
from refimpl.draft_case import Loops
from refimpl.head import Head
from refimpl.head_case import HeadCase, HeadRef, is_head_case
from refimpl.head_check import HeadChecker
from refimpl.ranks.head_runtime import facts_of
from refimpl.ranks.journal import Journal
from refimpl.ranks.limits import Limits
from refimpl.ranks.runtime import Ranks
from refimpl.replay import replay_case
from refimpl.session import Checker, Failure, Session
from refimpl.verdict.certificate import canonical
from refimpl.verdict.kinds import Kind
from refimpl.verdict.report import render, write_case
from refimpl.vocab.d2t import check_table
from refimpl.vocab.layouts import even_layout
from tests.test_command_line import pytest_run, run, sentences

FIGURES: dict[str, Any] = {"source": {"all": "made up"}, "vocab_size": 100, "hidden_size": 8}
BAD_FIGURES = {
    "no vocabulary": ({"vocab_size": 0}, "vocab_size is 0"),
    "a draft vocabulary that is no part": ({"draft_vocab_size": 101}, "is over vocab_size 100"),
    "an unknown dtype": ({"dtype": "float8"}, "dtype is 'float8'"),
    "a scale of zero": ({"logit_scale": 0.0}, "logit_scale is 0.0"),
    "a negative scale": ({"logit_scale": -1.0}, "refuse a scale that is not positive"),
    "a scale that is none": ({"logit_scale": float("nan")}, "logit_scale is nan"),
    "a negative cap": ({"soft_cap": -30.0}, "soft_cap is -30.0"),
    "an epsilon that is none": ({"norm_eps": "1e-6"}, "norm_eps is '1e-6'"),
    "steps beyond reason": ({"steps": 1000}, "steps is 1000"),
    "no source": ({"source": {}}, "source is empty"),
}


@pytest.mark.parametrize("what", BAD_FIGURES)
def test_a_bad_figure_is_one_sentence(what: str) -> None:
    figures, said = BAD_FIGURES[what]
    with pytest.raises(heads.HeadError, match=said) as error:
        Head(**{**FIGURES, **figures})
    assert "\n" not in str(error.value)


def test_figures_of_any_kind_go_into_a_certificate() -> None:
    @dataclass(frozen=True, eq=False, kw_only=True)
    class More(Head):
        floor: float = -math.inf
        ids: np.ndarray = field(default_factory=lambda: np.arange(3))

    figures = More(**FIGURES).figures()
    assert (figures["floor"], figures["ids"], figures["vocab_size"]) == ("-Infinity", "[0 1 2]", 100)
    assert json.loads(canonical(figures)) == figures


def test_a_head_without_answers_of_its_own_says_whose_they_are() -> None:
    head = Head(source={"all": "made up"}, vocab_size=8, hidden_size=4)
    for ask in (head.full_tokens, head.local_tokens):
        with pytest.raises(heads.HeadError, match="their argmax is a path's"):
            ask(torch.zeros(1, 4), None)


def test_one_answer_without_the_other_is_refused() -> None:
    class Half(Head):
        def local_tokens(self, hidden_states: Any, group: Any, spec_step_idx: int = 0) -> torch.Tensor:
            raise AssertionError

    with pytest.raises(heads.HeadError, match="local_tokens without full_tokens"):
        Half(**FIGURES)


def test_every_tp_size_sees_one_matrix() -> None:
    head = Head(**{**FIGURES, "bias": True, "norm": True, "steps": 2, "logit_scale": 0.5, "soft_cap": 3.0})
    hidden = torch.randn(5, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    whole = head.local_logits(hidden, even_layout(100, 1).shard(0), 1)
    for tp_size in (2, 3, 7):
        layout = head.layout(tp_size)
        parts = [head.local_logits(hidden, layout.shard(rank), 1) for rank in range(tp_size)]
        real = [part[:, : end - start] for part, (start, end) in zip(parts, layout.bounds, strict=True)]
        assert torch.equal(torch.cat(real, dim=1), whole)


def test_variants_differ_from_the_head() -> None:
    head = Head(**{**FIGURES, "bias": True, "norm": True, "steps": 2, "logit_scale": 0.3, "soft_cap": 3.0})
    hidden = torch.randn(50, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    shard = head.layout(1).shard(0)
    right = head.local_logits(hidden, shard, 1)
    variants = head.variants()
    assert len(variants) == 9
    for name, logits in variants.items():
        assert not torch.equal(logits(hidden, shard, 1).to(right.dtype), right) or "float" in name, name


@pytest.mark.parametrize("name", heads.shipped())
def test_shipped_heads(name: str) -> None:
    head = heads.load(name)
    assert head.name == name
    said = " ".join(head.source)
    for figure in ("vocab_size", "hidden_size", "soft_cap", "logit_scale", "bias", "norm", "steps", "draft_vocab_size"):
        default = Head.__dataclass_fields__[figure].default
        assert "all" in head.source or figure in said or getattr(head, figure) == default, f"{figure} has no source"
    for tp_size in (1, 2, 4, 8):
        assert head.layout(tp_size).vocab_size == head.num_logits
    assert head.within(64 << 20).weight_bytes <= 64 << 20 or not head.has_weights
    d2t = head.d2t()
    assert (d2t is not None) == (name in WITH_TABLES)
    if d2t is not None:
        report = check_table(d2t, head.num_logits, head.vocab_size)
        assert not report.errors and report.is_rising == (not any(known.ties_by_draft_id for known in head.known))


WITH_TABLES = {
    "small_eagle3",
    "qwen3_8b_dflash_32k",
    "llama_3_1_8b_eagle3",
    "qwen3_8b_eagle3",
    "qwen3_8b_eagle3_by_frequency",
    "qwen3_coder_30b_peagle",
    "deepseek_v3_eagle3",
    "full_vocab_with_table",
}


def test_names() -> None:
    assert heads.expand(["qwen3-8b-eagle3", "qwen3_8b_eagle3"]) == ("qwen3_8b_eagle3",)
    assert set(heads.expand(["all"])) >= set(heads.shipped())
    with pytest.raises(heads.HeadError, match="the nearest are qwen3_8b_eagle3"):
        heads.spelled("qwen3_8b_eagle3_by")
    with pytest.raises(heads.HeadError, match="give its folder as --checkpoint=/a/b"):
        heads.expand(["checkpoint:/a/b"])
    assert heads.spelled("checkpoint:/a/b") == "checkpoint:/a/b"  # as case files have it
    assert isinstance(heads.load("fixtures.heads._template:head"), Head)


def test_heads_of_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = metadata.EntryPoint("theirs", "tests.head_mutants.right:by_frequency", heads.ENTRY_POINTS)

    def installed(*, group: str) -> list[metadata.EntryPoint]:
        return [entry] if group == heads.ENTRY_POINTS else []

    monkeypatch.setattr(metadata, "entry_points", installed)
    assert heads.spelled("theirs") == "theirs" and heads.expand(["all"])[-1] == "theirs"
    assert heads.load("theirs").draft_vocab_size == 1003


# -- cases --------------------------------------------------------------------------------------------


def a_case() -> HeadCase:
    values = np.zeros((2, 16))
    values[0, 3], values[1, :] = -0.0, np.linspace(-2, 3, 16)
    values[1, 15] = np.inf
    return HeadCase(HeadRef("small_eagle3", 1 << 20), even_layout(9, 2), "bfloat16", bits.encode(values, "bfloat16"), 2)


def test_a_case_survives_both_forms(tmp_path: Path) -> None:
    case = a_case()
    (tmp_path / "case.json").write_text(json.dumps({"head_case": case.to_json()}, allow_nan=False))
    (tmp_path / "case.safetensors").write_bytes(case.to_bytes({"path": "own"}))
    for file in tmp_path.iterdir():
        assert is_head_case(file)
        again, _ = HeadCase.load(file)
        assert again.digest == case.digest and again.head == case.head


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "int8"},
        {"hidden_states": [[1, 2]]},
        {"bounds": [[0, 1], [2, 3]]},
        {"hidden_size": 10**13, "hidden_states": [{"0": 1.0}]},
    ],
)
def test_a_damaged_case_is_one_sentence(change: dict[str, Any]) -> None:
    with pytest.raises(CaseError):
        HeadCase.from_json({**a_case().to_json(), **change})


def test_a_line_of_a_drafting_loop_alone_holds() -> None:
    assert head_summary.HeadLine().verdict == "refused: nothing was run"
    assert head_summary.HeadLine(drafted=128).verdict == "holds"


# -- on ranks -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with Ranks(backend="gloo", limit=10.0) as ranks:
        journal = Journal(tmp_path_factory.mktemp("journal"), "heads")
        yield Session(ranks, journal, reduce_seconds=5.0)
        journal.close(0)


def checker(session: Session, name: str, path: str) -> HeadChecker:
    check = Checker(session, path, 2, f"test_heads.py::{name}")
    check.head = name
    return HeadChecker(check, session, facts_of(session.ranks, HeadRef(name), [2]))


def loops(check: HeadChecker) -> Loops:
    found = Loops.of(check.drafting.run(loop_of(check, 64, seed=3))[0])
    assert found is not None
    return found


def test_a_frequency_ordered_table_changes_acceptance(session: Session) -> None:
    by_draft_id = loops(checker(session, "tests.head_mutants.right:by_frequency", "gather_pairs"))
    by_target_id = loops(checker(session, "tests.head_mutants.right:by_frequency", "target_tie_break"))
    assert by_draft_id.full[0].accepted.mean() >= 1.5 and by_draft_id.tied
    assert by_draft_id.tied >= 20
    assert np.array_equal(by_target_id.full[0].accepted, by_target_id.local[0].accepted)
    lost = by_draft_id.full[0].accepted.mean() - by_draft_id.local[0].accepted.mean()
    assert lost > 0.1, f"{lost:.2f} drafted tokens less are accepted"


def test_a_sorted_table_does_not(session: Session) -> None:
    found = loops(checker(session, "small_eagle3", "gather_pairs"))
    assert found.tied and np.array_equal(found.full[0].drafted, found.local[0].drafted)
    assert np.array_equal(found.full[0].accepted, found.local[0].accepted)


def test_known_divergences_are_counted_and_missed_ones_told(session: Session, user_heads: Path) -> None:
    check = checker(session, f"{user_heads}:by_frequency", "gather_pairs")
    for seed in range(4):
        for case in HiddenStates(seed, batch=60).cases(check):
            check(case)
    assert check.tally.conditional and not check.tally.known
    assert not check.tally.failed and not check.unseen_known
    check = checker(session, f"{user_heads}:nothing_wrong", "gather_pairs")
    for case in HiddenStates(0, batch=60).cases(check):
        check(case)
    assert check.unseen_known == ["of the past"]


@pytest.mark.parametrize(
    ("method", "place"), [("norm_weight(self, spec_step_idx=0)", "[3]"), ("weight_rows(self, *given)", "[0, 0]")]
)
def test_rows_that_all_tie_or_hold_a_nan_show_nothing_of_a_head(
    session: Session, tmp_path: Path, method: str, place: str
) -> None:
    """One weight that is not finite: both paths agree on every row, whatever they make of the hidden states."""
    name, given = method.split("(self, ")
    given = given.rstrip(")").replace("=0", "")
    (tmp_path / "broken.py").write_text(
        "from dataclasses import dataclass\nfrom refimpl.head import Head\n"
        "@dataclass(frozen=True, eq=False, kw_only=True)\nclass Broken(Head):\n"
        f"    def {method}:\n        found = super().{name}({given}).clone()\n"
        f"        found{place} = float('{'inf' if name == 'norm_weight' else 'nan'}')\n        return found\n"
        "head = Broken(source={'all': 'made up'}, vocab_size=300, hidden_size=16, norm=True)\n"
    )
    check = checker(session, f"{tmp_path / 'broken.py'}:head", "gather_pairs")
    session.notes.clear()
    for seed in range(3):
        for case in HiddenStates(seed, batch=60).cases(check):
            check(case)
    check.drafting.conclude(loop := loop_of(check, 8, seed=3), *check.drafting.run(loop))
    assert check.tally.hidden.rows >= 50 and check._checker.rows == 0
    assert any("are its weights finite" in note for note in session.notes)


def test_ties_that_a_sound_table_decides_need_not_be_stated(session: Session) -> None:
    from tests.test_head_mutants import first_failure

    check = checker(session, "tests.head_mutants.right:by_frequency", "gather_pairs")
    assert first_failure(check) is None
    ((kind, reason),) = check.tally.conditional
    assert kind == "wrong-tie" and "the table does not rise strictly" in reason
    parts = [{"heads": [{"head": "h", "path": "p", "tp_size": 2, **check.tally.plain()}]}]
    assert head_summary.merge(parts)["h", "p", 2].verdict == "CONDITIONAL: wrong-tie"
    (line,) = (line for line in head_summary.render(parts) if line.startswith("condition of h: wrong-tie"))
    assert "p tp 2" in line
    other = checker(session, "tests.head_mutants.right:by_frequency", "tests.mutants.ties:last_rank_wins_ties")
    assert first_failure(other) is not None


BEHIND_TIES = """
    from dataclasses import dataclass

    import numpy as np
    import torch

    from refimpl.head import Head
    from refimpl.paths.gather_pairs import gather_pairs
    from refimpl.vocab.d2t import offsets


    class Columns(Head):
        def weight_rows(self, start, end, spec_step_idx=0):  # one hot, several rows alike; the last wins alone
            rows = torch.eye(self.hidden_size)[torch.arange(start, end) % self.hidden_size]
            rows[torch.arange(start, end) == self.num_logits - 1] = 2 * torch.eye(self.hidden_size)[-1]
            return rows.to(torch.bfloat16)

        def d2t(self):
            return offsets(np.arange(self.num_logits)[::-1])


    head = Columns(source={"all": "made up"}, vocab_size=64, draft_vocab_size=64, hidden_size=8)


    def path(local_logits, shard, group, d2t=None):
        tokens = gather_pairs(local_logits, shard, group, d2t)
        return torch.where(tokens == 0, 1, tokens)  # target 0 is that of the last column


    path.tie_break = "draft_id"
"""


def test_a_mistake_behind_many_ties_of_the_table_is_found(session: Session, tmp_path: Path) -> None:
    file = tmp_path / "behind_ties.py"
    file.write_text(textwrap.dedent(BEHIND_TIES))
    check = checker(session, f"{file}:head", f"{file}:path")
    states = np.zeros((20, 8))
    states[:19, 0] = states[19, 7] = 1.0
    ref, dtype = check.facts.ref, check.facts.dtype
    ties = HeadCase(ref, check.layout, dtype, bits.encode(states[:19], dtype))
    assert check(ties).holds is False and check.tally.conditional.total() == 19
    with pytest.raises(Failure) as failure:
        check(HeadCase(ref, check.layout, dtype, bits.encode(states, dtype)))
    # A wrong maximum; once the columns are cut down, a target that none of them has.
    assert failure.value.kind in (Kind.WRONG_MAXIMUM, Kind.WRONG_TARGET)


def test_a_head_that_masks_is_told_so_and_its_rows_are_counted(session: Session, user_heads: Path) -> None:
    check = checker(session, f"{user_heads}:masks", "target_tie_break")
    for case in HiddenStates(0, batch=60, forms=("zero", "toward")).cases(check):
        check(case)
    check = checker(session, f"{user_heads}:masks", "gather_pairs")
    for case in HiddenStates(0, batch=60, forms=("zero",)).cases(check):
        check(case)
    assert check.tally.hidden.filler_rows == 60 == check.tally.hidden.filler_differs
    assert any("it can give rows that are all -inf; under its table" in note for note in session.notes)


def test_a_table_that_is_none_is_refuted_and_read_again_by_a_replay(
    session: Session, user_heads: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check = checker(session, f"{user_heads}:doubled", "gather_pairs")
    with pytest.raises(Failure) as failure:
        check.table()
    assert failure.value.kind is Kind.BAD_TABLE and "both map to target" in str(failure.value)
    found, path = failure.value.counterexamples[0], "gather_pairs"
    file = write_case(found, user_heads.parent, property_id="x", path=path, backend="gloo")
    text = render(found, property_id="x", head="doubled", path=path, backend="gloo", replay_command="replay")
    assert "both map to target" in text and "token of row" not in text, text
    assert replay_case(file, path=None, backend=None, limits=Limits()) == 1
    assert "bad-table: draft ids" in capsys.readouterr().out
    user_heads.write_text(user_heads.read_text().replace("return -np.arange", "return np.arange"))
    assert replay_case(file, path=None, backend=None, limits=Limits()) == 0
    assert "301 draft ids, is in range and injective" in capsys.readouterr().out


def test_a_failing_case_is_written_and_replayed(session: Session, tmp_path: Path) -> None:
    from tests.test_head_mutants import OWN, first_failure

    check = checker(session, "tests.head_mutants.logits:ScaleLeftOut", OWN)
    failure = first_failure(check)
    assert failure is not None
    file = write_case(failure.counterexamples[0], tmp_path, property_id="x", path=OWN, backend="gloo")
    result = run("argmax-parity", "replay", str(file))
    assert result.returncode == 1 and result.stdout.startswith("still fails: head"), result.stdout + result.stderr
    text = file.read_text().replace("ScaleLeftOut", "CapLeftOut").replace("logits:CapLeftOut", "right:Engine")
    file.write_text(text)
    result = run("argmax-parity", "replay", str(file))
    assert result.returncode == 0 and result.stdout.startswith("fixed: head"), result.stdout + result.stderr


@pytest.mark.parametrize(
    ("note", "said"),
    [
        ({"path": 3}, "it names no path"),
        ({"path": "gather_pairs"}, "its layout has 9 columns, the head makes 1003 logits"),
    ],
)
def test_a_case_that_cannot_be_asked_again_is_one_sentence(
    note: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = a_case().with_values(np.zeros((2, 32), np.uint16))  # as the head takes them, over a part of its columns
    file = tmp_path / "case.json"
    file.write_text(json.dumps({**note, "head_case": case.to_json()}))
    assert replay_case(file, path=None, backend=None, limits=Limits()) == 4
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


# -- commands -----------------------------------------------------------------------------------------

USER_HEADS = """
    import os
    from dataclasses import dataclass, replace
    from pathlib import Path

    import numpy as np

    from fixtures.heads._tables import UNSORTED, FrequencyTable
    from refimpl.head import Head, Known

    with (Path(__file__).parent / "imported by").open("a") as log:
        log.write(f"{os.getpid()}\\n")

    head = Head(source={"all": "made up"}, vocab_size=301, hidden_size=16)
    by_frequency = FrequencyTable(
        source={"all": "made up"}, vocab_size=901, draft_vocab_size=301, hidden_size=16, known=(UNSORTED,)
    )
    nothing_wrong = head.changed(known=(Known(kinds=("wrong-tie",), reason="of the past"),))
    number = 7


    class Doubled(Head):
        def d2t(self):
            return -np.arange(self.num_logits)


    doubled = Doubled(source={"all": "made up"}, vocab_size=901, draft_vocab_size=301, hidden_size=16)


    class Raises(Head):
        def local_logits(self, hidden_states, shard, spec_step_idx=0):
            raise RuntimeError("boom")


    class Masks(FrequencyTable):
        def local_logits(self, hidden_states, shard, spec_step_idx=0):
            logits = super().local_logits(hidden_states, shard, spec_step_idx)
            logits[(hidden_states == 0).all(dim=1)] = -float("inf")
            return logits


    @dataclass(frozen=True, eq=False, kw_only=True)
    class Folded(FrequencyTable):
        @property
        def input_size(self):
            return 2 * self.hidden_size

        def transform(self, hidden_states, spec_step_idx=0):
            return hidden_states.view(len(hidden_states), 2, self.hidden_size).sum(dim=1)


    folded = Folded(source={"all": "made up"}, vocab_size=901, draft_vocab_size=301, hidden_size=16)
    masks = Masks(
        source={"all": "made up"}, vocab_size=901, draft_vocab_size=301, hidden_size=16, masks=True, seed=1
    )
    raises = Raises(source={"all": "made up"}, vocab_size=301, hidden_size=16)


    forgotten = Head(source={"all": "made up"}, vocab_size=901, draft_vocab_size=301, hidden_size=16)


    def negative():
        return head.changed(logit_scale=-1.0)
"""


@pytest.fixture
def user_heads(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(textwrap.dedent(USER_HEADS))
    return file


def test_a_head_outside_the_repository_gets_a_verdict(user_heads: Path) -> None:
    result = pytest_run("properties/", "-k", "head", f"--head={user_heads}:head", "--path=gather_pairs")
    assert result.returncode == 0, result.stdout + result.stderr
    line = next(line for line in result.stdout.splitlines() if line.startswith(f"{user_heads}:head"))
    assert line.endswith("holds")
    # The driver is the first process of the run; every import happened in executors, several of them.
    assert len(set((user_heads.parent / "imported by").read_text().split())) > 4


def test_the_estimate_takes_hidden_states_as_the_head_does(user_heads: Path) -> None:
    option = f"--head={user_heads}:folded"
    result = pytest_run("properties/test_head_table.py", option, "--path=gather_pairs", "--tp=2")
    assert result.returncode == 0, result.stdout
    assert "of 2048 rows from random hidden states differ" in result.stdout


def test_a_head_that_raises_is_a_failure_with_a_report(user_heads: Path) -> None:
    result = pytest_run("properties/test_head_parity.py", f"--head={user_heads}:raises", "--path=gather_pairs")
    assert result.returncode == 1
    assert "raised: every rank raised" in result.stdout and "RuntimeError: boom" in result.stdout, result.stdout


def test_names_that_are_no_heads(session: Session, user_heads: Path) -> None:
    wrong = {
        "missing.py:head": "does not exist",
        f"{user_heads}:number": "is of type int; a head is a refimpl.head.Head",
        f"{user_heads}:negative": "is of type function; a head is a refimpl.head.Head",
        f"{user_heads}:other": "has no attribute 'other'",
        f"{user_heads}:forgotten": "draft_vocab_size 301 is less than vocab_size 901, and d2t.. gives no table",
    }
    for name, said in wrong.items():
        with pytest.raises(heads.HeadError, match=said):
            facts_of(session.ranks, HeadRef(heads.spelled(name)), [2])


@pytest.mark.parametrize("option", ["--head=qwen", "--head={}:number"])
def test_wrong_heads_are_one_sentence_and_exit_4(option: str, user_heads: Path) -> None:
    result = pytest_run("properties/test_head_parity.py", option.format(user_heads))
    errors = sentences(result)
    assert result.returncode == 4 and len(errors) == 1 and "head" in errors[0], result.stdout + result.stderr
