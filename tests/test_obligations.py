"""The ledger of evidence: what one word for an obligation rests on, and that parts of a run merge."""

from __future__ import annotations

import importlib
import json
import pkgutil

import pytest

import properties
from refimpl.verdict.kinds import Kind
from refimpl.verdict.obligations import (
    BEYOND_OBLIGATIONS,
    BY_KIND,
    CONTRACT,
    OBLIGATIONS,
    PARTS,
    Evidence,
    Ledger,
    Status,
    render,
)


def evidence(obligation: str = "O3", status: Status = Status.TESTED, tp_size: int = 2, **more) -> Evidence:
    return Evidence("a_path", obligation, status, tp_size, "properties/test_x.py::test_y", **more)


def proof(obligation: str, part: str, tp_size: int = 2, count: int = 10) -> Evidence:
    return evidence(obligation, Status.PROVED, tp_size, part=part, scope="every row", count=count)


SUBJECT = ("a_path", None)


def test_refuted_outweighs_everything() -> None:
    refuted = evidence(status=Status.REFUTED, kind="wrong-tie", witness="cases/x.json")
    ledger = Ledger([proof("O3", "candidates"), evidence(count=5), refuted])
    assert ledger.status(SUBJECT, "O3") is Status.REFUTED
    assert (
        "O3  refuted  the cross-rank reduction returns the greatest candidate (wrong-tie; cases/x.json)"
        in "\n".join(render(ledger))
    )


def test_unknown_outweighs_a_proof() -> None:
    ledger = Ledger([proof("O3", "candidates"), evidence(status=Status.UNKNOWN)])
    assert ledger.status(SUBJECT, "O3") is Status.UNKNOWN


def test_proved_takes_every_part() -> None:
    ledger = Ledger([proof("O2", "values")])
    assert ledger.status(SUBJECT, "O2") is Status.TESTED
    assert ledger.unproved(SUBJECT, "O2") == [(2, "ids")]
    ledger.add(proof("O2", "ids"))
    assert ledger.status(SUBJECT, "O2") is Status.PROVED


def test_proved_takes_every_tp_size_of_the_run() -> None:
    ledger = Ledger([proof("O3", "candidates", 2), evidence("O1", tp_size=4, count=1)])
    assert ledger.status(SUBJECT, "O3") is Status.TESTED
    ledger.add(proof("O3", "candidates", 4))
    assert ledger.status(SUBJECT, "O3") is Status.PROVED


def test_nothing_ran() -> None:
    ledger = Ledger([evidence("O1", count=1), evidence("O5", Status.NOT_RUN, scope="refused: no tables")])
    assert ledger.status(SUBJECT, "O0") is Status.NOT_RUN
    text = "\n".join(render(ledger))
    assert "O5  not run" in text and "(refused: no tables)" in text
    assert "O1  tested" in text and "(tested on 1 rows)" in text and "proved" not in text


def test_a_head_is_a_subject_of_its_own() -> None:
    ledger = Ledger([evidence("O1", count=1), evidence("O0", count=2, head="a_head")])
    assert ledger.subjects() == [("a_path", None), ("a_path", "a_head")]
    assert ledger.status(("a_path", "a_head"), "O1") is Status.NOT_RUN
    assert "obligations of a_path, head a_head, tp 2" in render(ledger)


def test_parts_of_a_run_merge_through_json() -> None:
    first, second = Ledger([evidence(count=3, dtypes=("float16",))]), Ledger([proof("O3", "candidates")])
    parts = [json.loads(json.dumps(part.to_value())) for part in (first, second)]
    merged = Ledger.merged(parts)
    assert merged.entries == first.entries + second.entries
    assert merged.table(SUBJECT)[3].numbers == "proved on 10 rows, tested on 3 rows"


def test_proofs_and_obligations_are_published_ones() -> None:
    with pytest.raises(ValueError, match="names one of its parts"):
        proof("O3", "orderings")
    with pytest.raises(ValueError, match="is none of"):
        evidence("O9")
    assert set(PARTS) < set(OBLIGATIONS)
    assert evidence(CONTRACT).obligation not in OBLIGATIONS


def test_every_kind_refutes_one_thing() -> None:
    """By its name, or (of a wrong token) by its row: never by two of the ways."""
    by_row = {Kind.WRONG_TIE, Kind.WRONG_MAXIMUM, Kind.NAN_RULE, Kind.ALL_NEG_INF_ROW}
    assert set(BY_KIND) | set(BEYOND_OBLIGATIONS) | by_row == set(Kind)
    assert len(BY_KIND) + len(BEYOND_OBLIGATIONS) + len(by_row) == len(Kind)
    assert set(BY_KIND.values()) <= set(OBLIGATIONS)


def test_properties_say_what_they_are_evidence_for() -> None:
    """Every property file has a mark of published names, but those that no obligation is about.

    Cost; top-k; and live engines, whose two answers are compared end to end and never told apart by obligation.
    """
    unmarked = set()
    for module in pkgutil.iter_modules(properties.__path__):
        if not module.name.startswith("test_"):
            continue
        loaded = importlib.import_module(f"properties.{module.name}")
        marks = getattr(loaded, "pytestmark", [])
        marks = marks if isinstance(marks, list) else [marks]
        names = {name for mark in marks if mark.name == "obligations" for name in mark.args}
        assert names <= set(OBLIGATIONS), module.name
        if not names:
            unmarked.add(module.name)
    assert unmarked == {"test_communication", "test_engine_parity", "test_engine_topk", "test_topk"}


def test_of_many_heads_each_gets_one_line() -> None:
    ledger = Ledger(evidence(head=f"head_{number}", count=1) for number in range(20))
    said = render(ledger)
    assert len(said) == 20
    assert said[0] == "obligations of a_path, head head_0, tp 2: not run O0, O1, O2, O4, O5, O6, O7; tested O3"
