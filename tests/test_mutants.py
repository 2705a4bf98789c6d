"""Every seeded bug is refuted by the properties, with the right kind and a small case.

The properties themselves are run, on real ranks, with each mutant as the path: what an adopter's run would show.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings

import properties
from refimpl.ranks.journal import Journal
from refimpl.ranks.runtime import Ranks
from refimpl.session import NOT_REDUCED, Checker, Failure, Session
from refimpl.verdict.kinds import Kind
from tests.mutants import Mutant, all_mutants

_RANK_TIMEOUT = 3.0
_FIRST = ("test_token_parity", "test_tie_rule", "test_specials", "test_padding", "test_rank_agreement")
_LAST = ("test_metamorphic", "test_uniform_collectives", "test_communication")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with Ranks(backend="gloo", limit=_RANK_TIMEOUT) as ranks:
        journal = Journal(tmp_path_factory.mktemp("journal"), "mutants")
        yield Session(ranks, journal, reduce_seconds=8.0)
        journal.close(0)


def _properties() -> list[tuple[str, Callable[..., Any]]]:
    """Every property that is about generated rows: the broad and quick files first, those of many calls last."""
    files = {module.name for module in pkgutil.iter_modules(properties.__path__) if module.name.startswith("test_")}
    found = []
    order = [*_FIRST, *sorted(files - {*_FIRST, *_LAST}), *_LAST]
    for file in order:
        for name, function in inspect.getmembers(importlib.import_module(f"properties.{file}"), inspect.isfunction):
            marks = {mark.name for mark in getattr(function, "pytestmark", [])}
            about_paths = "check" in inspect.signature(function).parameters
            if (
                name.startswith("test_")
                and about_paths
                and hasattr(function, "hypothesis")
                and "needs_cuda" not in marks
            ):
                found.append((f"{file}::{name}", function))
    # A case of 2**24 columns is too wide to be cut down: only for what nothing smaller shows.
    return sorted(found, key=lambda entry: "beyond" in entry[0])


PROPERTIES = _properties()


def _needed_tp(function: Callable[..., Any]) -> int:
    return max((mark.args[0] for mark in getattr(function, "pytestmark", []) if mark.name == "needs_tp"), default=1)


def _worth_asking_first(mutant: Mutant) -> str:
    """The property file that alone can show such a bug, so that the others need not be sat through; or none."""
    if mutant.kinds == {Kind.COMMUNICATION}:
        return "test_communication"
    return "test_subgroup" if mutant.needs_subgroup else "test_d2t" if mutant.needs_table else ""


def failures(session: Session, path: str, tp_size: int, first: str = "") -> Iterator[tuple[str, Failure]]:
    """What the properties say of a path, one after the other, their examples derandomised.

    ``first``: the property file that is asked before all others.
    """
    for name, function in sorted(PROPERTIES, key=lambda entry: not (first and entry[0].startswith(first))):
        if _needed_tp(function) > tp_size:
            continue
        checker = Checker(session, path, tp_size, name)
        function._hypothesis_internal_use_settings = settings(
            function._hypothesis_internal_use_settings, derandomize=True, database=None
        )
        try:
            function(check=checker)
        except Failure as failure:
            yield name, failure


@pytest.mark.parametrize("mutant", all_mutants(), ids=lambda mutant: f"{mutant.family}-{mutant.name}")
def test_every_seeded_bug_is_refuted(session: Session, mutant: Mutant) -> None:
    """By the right kind, by no wrong one on the way there, and by a small case where the bug allows one."""
    for name, failure in failures(session, mutant.spec, mutant.tp_sizes[0], _worth_asking_first(mutant)):
        kinds = {counterexample.kind for counterexample in failure.counterexamples}
        notes = [note for counterexample in failure.counterexamples for note in counterexample.notes]
        assert not [note for note in notes if note.startswith(NOT_REDUCED)], f"{name}: {notes}"
        assert kinds <= mutant.kinds | mutant.also, f"{name} reports {sorted(kinds)}"
        if kinds & mutant.kinds:
            break
    else:
        pytest.fail(f"no property refutes {mutant.name} as one of {sorted(mutant.kinds)}: {mutant.note}")
    if mutant.small is True:
        for counterexample in failure.counterexamples:
            call = counterexample.case.calls[-1]
            assert call.batch <= 2, f"{name}: {call.batch} rows"
            assert call.layout.vocab_size <= 8, f"{name}: {call.layout.vocab_size} ids"
