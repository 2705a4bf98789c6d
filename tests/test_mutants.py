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
from refimpl.pytest_plugin import PROFILES
from refimpl.ranks.journal import Journal
from refimpl.ranks.runtime import Ranks
from refimpl.session import Checker, Failure, Session
from tests.mutants import Mutant, all_mutants

_RANK_TIMEOUT = 2.0


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with Ranks(backend="gloo", limit=_RANK_TIMEOUT) as ranks:
        journal = Journal(tmp_path_factory.mktemp("journal"), "mutants")
        yield Session(ranks, journal)
        journal.close(0)


def _properties() -> list[tuple[str, Callable[..., Any]]]:
    """Every property that is about generated rows, by file and name."""
    found = []
    for module in sorted(pkgutil.iter_modules(properties.__path__), key=lambda module: module.name):
        if not module.name.startswith("test_"):
            continue
        for name, function in inspect.getmembers(
            importlib.import_module(f"properties.{module.name}"), inspect.isfunction
        ):
            marks = {mark.name for mark in getattr(function, "pytestmark", [])}
            if name.startswith("test_") and hasattr(function, "hypothesis") and "needs_cuda" not in marks:
                found.append((f"{module.name}::{name}", function))
    return found


PROPERTIES = _properties()


def _needed_tp(function: Callable[..., Any]) -> int:
    return max((mark.args[0] for mark in getattr(function, "pytestmark", []) if mark.name == "needs_tp"), default=1)


def first_failure(session: Session, path: str, tp_size: int) -> tuple[str, Failure] | None:
    """The first property that refutes a path, properties in a fixed order and their examples derandomised."""
    for name, function in PROPERTIES:
        if _needed_tp(function) > tp_size:
            continue
        checker = Checker(session, path, tp_size, name)
        function._hypothesis_internal_use_settings = settings(
            function._hypothesis_internal_use_settings, derandomize=True, database=None
        )
        try:
            function(check=checker)
        except Failure as failure:
            return name, failure
    return None


@pytest.mark.parametrize("mutant", all_mutants(), ids=lambda mutant: f"{mutant.family}-{mutant.name}")
def test_every_seeded_bug_is_refuted(session: Session, mutant: Mutant) -> None:
    found = first_failure(session, mutant.spec, mutant.tp_sizes[0])
    assert found is not None, f"no property refutes {mutant.name}: {mutant.note}"
    name, failure = found
    kinds = {counterexample.kind for counterexample in failure.counterexamples}
    assert kinds & mutant.kinds, f"{name} reports {sorted(kinds)}, expected one of {sorted(mutant.kinds)}"
    assert kinds <= mutant.kinds | mutant.also, f"{name} reports {sorted(kinds)} as well"
    if mutant.small is True:
        for counterexample in failure.counterexamples:
            call = counterexample.case.calls[-1]
            assert call.batch <= 2 and call.layout.vocab_size <= 8, f"{name}: ({call.batch}, {call.layout.vocab_size})"


def test_the_profiles_are_the_published_ones() -> None:
    assert PROFILES == {"dev": 8, "ci": 30, "nightly": 300}
