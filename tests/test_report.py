"""Reports as a reader sees them, and the case files that replay reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from refimpl import bits
from refimpl.case import REPORT_FORMAT, Call, Case
from refimpl.ranks.outcome import CallOutcome, Died, RankOutcome, Run, Stuck
from refimpl.verdict.judge import Finding, expected
from refimpl.verdict.kinds import DESCRIPTIONS, Kind
from refimpl.verdict.obligations import OBLIGATIONS
from refimpl.verdict.reduce import Counterexample
from refimpl.verdict.report import obligation_of, render, to_document, write_case
from refimpl.vocab import d2t as tables
from refimpl.vocab.layouts import Layout, even_layout, layout_from_sizes

REPLAY = "argmax-parity replay .argmax-parity/cases/case.json"


def call_of(
    layout: Layout, *rows: Sequence[float], dtype: str = "float32", padding: float = -np.inf, d2t: object = None
) -> Call:
    logits = bits.encode(np.array(rows).reshape(len(rows), layout.vocab_size), dtype)
    (pad,) = bits.encode(np.array([padding]), dtype)
    return Call(layout, dtype, logits, (int(pad),), None if d2t is None else tables.offsets(np.array(d2t)))


def answered(call: Call, tokens: Sequence[int], overwritten: Sequence[int] | None = None) -> CallOutcome:
    later = None if overwritten is None else np.array(overwritten)
    reference = expected(call, "target_id").tokens
    return CallOutcome("answered", reference=reference, tokens=np.array(tokens), overwritten=later)


def of(
    kind: Kind,
    calls: Sequence[Call],
    ranks: Sequence[RankOutcome],
    *,
    call: int = 0,
    rows: tuple[int, ...] = (),
    message: str = "",
    identity: str | None = None,
    **more: object,
) -> Counterexample:
    finding = Finding(kind, identity or kind.value, call, message, rows)
    case = Case(tuple(calls), int(more.pop("bystanders", 0)))  # type: ignore[call-overload]
    return Counterexample(kind, finding.identity, case, "target_id", Run(tuple(ranks), 10.0), finding, **more)  # type: ignore[arg-type]


def shown(counterexample: Counterexample, head: str | None = None) -> str:
    return render(
        counterexample,
        property_id="properties/test_tie_rule.py::test_ties[tp=2]",
        head=head,
        path="engine.heads:local_argmax",
        backend="gloo",
        replay_command=REPLAY,
    )


def test_a_wrong_tie() -> None:
    call = call_of(layout_from_sizes([1, 2]), [1, 0, 1], dtype="bfloat16")
    ranks = [RankOutcome((answered(call, [2]),))] * 2
    found = of(Kind.WRONG_TIE, [call], ranks, rows=(0,), why="the last rank wins a tie across ranks", obligation="O3")
    text = shown(found, "eagle3-llama3-8b")
    assert (
        text
        == f"""\
properties/test_tie_rule.py::test_ties[tp=2]
wrong-tie: the token belongs to the tied set but is not its lowest id
path engine.heads:local_argmax
head eagle3-llama3-8b, tp_size 2, bfloat16, gloo

call 1 of 1: batch 1, vocabulary 3, padded_size 2
  rank  column  id  row 0
     0       0   0    1.0  tied expected
     0       1   -   -inf  padding
     1       0   1    0.0
     1       1   2    1.0  tied returned

  token of row 0  rank 0  rank 1
  full gather          0       0
  path                 2       2
  NumPy                0       0

refutes O3: the cross-rank reduction returns the greatest candidate
why: the last rank wins a tie across ranks
to replay exactly this case:
{REPLAY}"""
    )


def test_a_table_and_rows_that_depend_on_each_other() -> None:
    call = call_of(layout_from_sizes([1, 1]), [0, 1], [1, 0], [0, 0], d2t=[40, 7])
    ranks = [RankOutcome((answered(call, [7, 7, 7]),))] * 2
    note = "row 1 of call 1 alone, on fresh ranks, is right"
    text = shown(of(Kind.ROW_DEPENDENCE, [call], ranks, rows=(1,), notes=(note,)))
    assert (
        text
        == f"""\
properties/test_tie_rule.py::test_ties[tp=2]
row-dependence: a row's token depends on other rows, on its position or on earlier calls
path engine.heads:local_argmax
tp_size 2, float32, gloo

call 1 of 1: batch 3, vocabulary 2, padded_size 1
  rank  column  draft id  target id  row 0  row 1  row 2  (of row 1)
     0       0         0         40    0.0    1.0    0.0  expected
     1       0         1          7    1.0    0.0    0.0  returned

  token of row 1  rank 0  rank 1
  full gather         40      40
  path                 7       7
  NumPy               40      40

refutes O6: a row's token depends on that row alone
note: row 1 of call 1 alone, on fresh ranks, is right
to replay exactly this case:
{REPLAY}"""
    )


def test_a_wide_row_is_shown_where_it_matters() -> None:
    row = np.zeros(300)
    row[257] = 1
    call = call_of(even_layout(300, 2), row)
    ranks = [RankOutcome((answered(call, [256]),))] * 2
    text = shown(of(Kind.WRONG_MAXIMUM, [call], ranks, rows=(0,)))
    assert (
        """\
  rank  column   id  row 0
     0       0    0    0.0
   ...
     1     105  255    0.0
     1     106  256    0.0  returned
     1     107  257    1.0  expected
     1     108  258    0.0
   ...
     1     149  299    0.0
"""
        in text
    )


def test_ends_of_ranks() -> None:
    call = call_of(layout_from_sizes([1, 0, 0]), [0], [0])
    traceback = 'Traceback:\n  File "/home/me/engine/heads.py", line 12, in local_argmax\n    boom()\nValueError: no\n'
    frames = ('"/x/torch/distributed/a.py", line 5 in wait', '"/x/engine/heads.py", line 9 in local_argmax')
    stack = "Current thread 0x1:\n" + "".join(f"  File {frame}\n" for frame in frames)
    raised = CallOutcome("raised", message="no room\nat all", error_type="ValueError", traceback=traceback)
    ranks = [
        RankOutcome((), Died(11, None, "one\nlast words\n")),
        RankOutcome((raised,)),
        RankOutcome((), Stuck(0.14, stack)),
    ]
    text = shown(of(Kind.DIED, [call], ranks, identity="died:SIGSEGV", bystanders=1))
    assert (
        text
        == f"""\
properties/test_tie_rule.py::test_ties[tp=2]
died:SIGSEGV: a rank's process ended
path engine.heads:local_argmax
tp_size 3, float32, gloo, 1 bystander(s) before the group

call 1 of 1: batch 2, vocabulary 1, padded_size 1
  rank  column  id  row 0  row 1  (of row 0)
     0       0   0    0.0    0.0
     1       0   -   -inf   -inf  padding
     2       0   -   -inf   -inf  padding

rank 0: died by SIGSEGV
    last words
rank 1: raised ValueError: no room
    at engine/heads.py:12 in local_argmax
rank 2: no answer within 0.1 s: engine/heads.py:9 in local_argmax

refutes O7: all ranks return the same tokens after the same collectives in the same order
to replay exactly this case:
{REPLAY}"""
    )


def test_repeated_calls_are_shown_once() -> None:
    call = call_of(layout_from_sizes([1, 1]), [0, 1])
    same = call_of(layout_from_sizes([1, 1]), [0, 1])
    wrong = RankOutcome((answered(call, [1]), answered(call, [1]), answered(call, [0])))
    text = shown(of(Kind.ROW_DEPENDENCE, [call, same, call], [wrong] * 2, call=2, rows=(0,)))
    assert "calls 1 to 3, all alike, of 3: batch 1, vocabulary 2, padded_size 1, fails at call 3\n" in text
    assert text.count("  rank  column") == 1
    assert "  path                 0       0\n" in text


def test_a_result_that_changed_later_and_two_answers() -> None:
    first, second = call_of(layout_from_sizes([2]), [0, 1]), call_of(layout_from_sizes([2]), [1, 0])
    rank = RankOutcome((answered(first, [1], [0]), answered(second, [0])))
    text = shown(of(Kind.RESULT_OVERWRITTEN, [first, second], [rank], rows=(0,)))
    assert "  path                          1\n  path, after later calls       0\n" in text
    answers = ("call 1, row 0: rank 0: 1", "call 1, row 0: rank 0: 0")
    text = shown(of(Kind.NONDETERMINISTIC, [first], [rank], rows=(0,), answers=answers))
    assert "two answers to the same case:\n  call 1, row 0: rank 0: 1\n  call 1, row 0: rank 0: 0\n" in text


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_fits_a_screen(kind: Kind) -> None:
    columns = 11
    layout = layout_from_sizes([columns] * 8, 3)
    rows = np.full((70, layout.vocab_size), -3.3895313892515355e38)
    calls = [call_of(layout, *rows + offset, d2t=np.arange(layout.vocab_size)[::-1] + 10**7) for offset in range(5)]
    tokens = [10**7 + 3] * 70
    ranks = [RankOutcome(tuple(answered(call, tokens, tokens) for call in calls))] * 8
    found = of(
        kind,
        calls,
        ranks,
        call=4,
        rows=(69,),
        message="\n".join(["a message of several lines, each of them long" * 4] * 9),
        why="why " * 60,
        notes=("note " * 40,),
        answers=("answer " * 40, "another\nanswer"),
    )
    lines = shown(found, "head " * 40).splitlines()
    assert len(lines) <= 60
    assert all(len(line) <= 100 for line in lines)
    assert lines[1].startswith(f"{kind.value}: {DESCRIPTIONS[kind]}"[:90])
    assert sum(line.startswith("refutes ") for line in lines) == 1
    assert lines[-1] == REPLAY


@pytest.mark.parametrize(
    ("call", "token", "obligation"),
    [
        (call_of(layout_from_sizes([2, 1]), [1, 1, 0]), 1, "O1"),
        (call_of(layout_from_sizes([2, 1]), [1, 0, 1]), 2, "O3"),
        (call_of(layout_from_sizes([2, 1]), [1, 1, 0], d2t=[5, 3, 4]), 5, "O5"),
        (call_of(layout_from_sizes([2, 1]), [1, 1, 0], d2t=[3, 5, 6]), 5, "O1"),
    ],
)
def test_the_obligation_of_a_wrong_tie_is_read_off_the_columns(call: Call, token: int, obligation: str) -> None:
    ranks = [RankOutcome((answered(call, [token]),))] * 2
    assert obligation_of(of(Kind.WRONG_TIE, [call], ranks, rows=(0,))) == obligation
    assert obligation in OBLIGATIONS


def test_a_case_file_holds_what_a_replay_needs(tmp_path: Path) -> None:
    call = call_of(layout_from_sizes([1, 1], 1), [-0.0, np.nan], padding=np.inf, d2t=[5, 3])
    found = of(Kind.NAN_RULE, [call], [RankOutcome((answered(call, [5]),))] * 2, rows=(0,), message="row 0")
    where = {"property_id": "properties/a.py::test_b", "path": "engine.heads:local_argmax", "backend": "gloo"}
    file = write_case(found, tmp_path, **where)
    assert file.parent == tmp_path and file.name.startswith("nan-rule-") and file.suffix == ".json"
    case, document = Case.load(file)
    assert case.digest == found.case.digest
    assert document == to_document(found, **where) == json.loads(file.read_text())
    assert {key: document[key] for key in document if key != "case"} == {
        "format": REPORT_FORMAT,
        "property": "properties/a.py::test_b",
        "kind": "nan-rule",
        "identity": "nan-rule",
        "path": "engine.heads:local_argmax",
        "backend": "gloo",
        "tie_rule": "target_id",
        "message": "row 0",
    }


def test_paths_that_fail_on_one_case_have_a_file_each(tmp_path: Path) -> None:
    call = call_of(layout_from_sizes([1, 1]), [0.0, 0.0])
    found = of(Kind.WRONG_TIE, [call], [RankOutcome((answered(call, [1]),))] * 2, rows=(0,), message="row 0")
    others = [replace(found, identity="raised:ValueError"), replace(found, tie_rule="draft_id")]
    files = [write_case(found, tmp_path, property_id="p", path=path, backend="gloo") for path in ("a:a", "a:b")]
    files += [write_case(other, tmp_path, property_id="p", path="a:a", backend="gloo") for other in others]
    assert len(set(files)) == 4
    assert files[0] == write_case(found, tmp_path, property_id="another", path="a:a", backend="gloo")
    assert [json.loads(file.read_text())["path"] for file in files] == ["a:a", "a:b", "a:a", "a:a"]


def test_a_big_case_is_written_as_safetensors(tmp_path: Path) -> None:
    call = call_of(even_layout(30_000, 2), np.zeros(30_000))
    found = of(Kind.WRONG_TIE, [call], [RankOutcome((answered(call, [1]),))] * 2, rows=(0,), message="row 0")
    file = write_case(found, tmp_path, property_id="p", path="engine.heads:local_argmax", backend="gloo")
    assert file.parent == tmp_path and file.name.startswith("wrong-tie-") and file.suffix == ".safetensors"
    case, note = Case.load(file)
    assert case.digest == found.case.digest
    assert note["path"] == "engine.heads:local_argmax" and note["tie_rule"] == "target_id"
    assert len(shown(found).splitlines()) < 40
