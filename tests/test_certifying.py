"""What a run as a whole adds to the ledger: tests that broke outside of a case, what was left out, ties of a table."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from refimpl import certifying
from refimpl.certifying import _conditional_ties, _left_out, _Outcomes, _problems, _State
from refimpl.verdict.obligations import Evidence, Ledger, Status

ROOT = Path(__file__).resolve().parents[1]


def entry(**more: Any) -> Evidence:
    values = dict(path="p", obligation="O5", status=Status.REFUTED, tp_size=2, source="t", head="h", kind="wrong-tie")
    return Evidence(**{**values, **more})  # type: ignore[arg-type]


def conditions(*entries: Evidence) -> list[str]:
    return [one.condition for one in _conditional_ties(Ledger(entries), "p", "h").entries]


def test_ties_of_a_table_carry_its_condition() -> None:
    shown = entry(condition="some rows")
    known = entry(kind="nan-rule", scope="known: two NaNs tie as well")
    assert conditions(shown, entry(obligation="O3"), known) == ["some rows"] * 3


def test_and_nothing_else_does() -> None:
    shown = entry(condition="some rows")
    others = [
        entry(kind="wrong-maximum"),
        entry(path="another"),
        entry(head="another"),
        entry(head=None),
        entry(kind="nan-rule"),
        entry(status=Status.TESTED),
    ]
    assert conditions(shown, *others) == ["some rows", *[""] * len(others)]
    met = entry(scope="known: the table is unsorted", condition="met by chance")
    assert conditions(met, shown) == ["some rows"] * 2
    assert conditions(entry()) == [""]  # not shown by the smallest tie
    assert conditions(entry(kind="doubtful table", condition="if it is meant"), entry()) == ["if it is meant", ""]


def test_a_test_that_broke_outside_of_a_case_is_a_problem_of_its_pair() -> None:
    state = _State(paths=("p", "q"), heads={"h": None, "i": None}, outcomes=_Outcomes())  # type: ignore[dict-item]
    state.outcomes.failed = ["a.py::x[h-p-tp2]", "a.py::x[i-p-tp2]", "a.py::x[p-tp2]", "a.py::told[h-p-tp2]", "b.py::y"]
    ledger = Ledger([entry(source="a.py::told[h-p-tp2]")])
    found = {
        (path, head): [text.split(" ")[0] for text in _problems(state, ledger, path, head)]
        for path in state.paths
        for head in state.heads
    }
    assert found == {
        ("p", "h"): ["a.py::x[h-p-tp2]", "a.py::x[p-tp2]", "b.py::y"],
        ("p", "i"): ["a.py::x[i-p-tp2]", "a.py::x[p-tp2]", "b.py::y"],
        ("q", "h"): ["b.py::y"],
        ("q", "i"): ["b.py::y"],
    }


@pytest.mark.parametrize("other", ["a.py:h", "b"])
def test_a_head_is_not_taken_for_one_whose_name_is_a_part_of_its_own(other: str) -> None:
    head = "b/a.py:h" if other == "a.py:h" else f"{other}-more"
    state = _State(paths=("p",), heads={other: None, head: None}, outcomes=_Outcomes())  # type: ignore[dict-item]
    state.outcomes.failed = [f"x.py::x[{head}-p-tp2]"]
    assert len(_problems(state, Ledger(), "p", head)) == 1
    if other == "a.py:h":
        assert not _problems(state, Ledger(), "p", other)


@pytest.mark.parametrize(
    ("arguments", "options", "run", "status", "expected"),
    [
        (["properties"], {}, 3, 0, []),
        (["."], {}, 3, 1, []),
        (["properties/test_d2t.py"], {}, 3, 0, ["only a part of the properties was asked for: properties/test_d2t.py"]),
        (["properties/test_d2t.py::test_x"], {}, 3, 0, ["only a part of the properties"]),
        (["properties"], {"keyword": "not slow"}, 3, 0, ["-k left some properties out: not slow"]),
        (["properties"], {"markexpr": "head"}, 3, 0, ["-m left some properties out: head"]),
        (["properties"], {"deselect": ["x"]}, 3, 0, ["--deselect left some properties out"]),
        (["properties"], {"lf": True}, 3, 0, ["--last-failed left some properties out"]),
        (["properties"], {"ignore": ["x"]}, 3, 0, ["--ignore left some properties out"]),
        (["properties"], {}, 1, 1, ["2 of 3 tests did not run"]),
        (["properties"], {}, 3, 2, ["the run ended early, with exit status 2"]),
    ],
)
def test_what_was_left_out_is_named(
    arguments: list[str], options: dict[str, Any], run: int, status: int, expected: list[str]
) -> None:
    config = SimpleNamespace(
        args=arguments, option=SimpleNamespace(**options), invocation_params=SimpleNamespace(dir=ROOT)
    )
    session: Any = SimpleNamespace(config=config, testscollected=3, exitstatus=status)
    state = _State()
    state.outcomes.ended = {f"t{number}" for number in range(run)}
    found = _left_out(session, state)
    assert len(found) == len(expected)
    assert all(text.startswith(start) for text, start in zip(found, expected, strict=True))


def test_shown_names() -> None:
    assert certifying.shown("small_eagle3") == "small_eagle3"
    assert certifying.shown("checkpoint:/a/b/draft target:/c") == "checkpoint:draft"
