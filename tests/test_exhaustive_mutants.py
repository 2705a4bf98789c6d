"""The exhaustive families see: each by itself, sampling off, refutes seeded bugs, and one that no other family does.

In the default profile each family is asked for the bug that only it sees, about 20 seconds; with
``--hypothesis-profile=nightly`` every family for every bug. `tests.exhaustive_matrix` makes the recorded results anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from properties.strategies.effort import nightly
from refimpl.ranks.runtime import Ranks
from refimpl.session import Session
from tests import exhaustive_matrix as matrix
from tests.mutants import Mutant, all_mutants

MUTANTS = {matrix.key(mutant): mutant for mutant in all_mutants()}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with Ranks(backend="gloo", limit=matrix.RANK_TIMEOUT) as ranks:
        found = matrix.open_session(ranks, Path(tmp_path_factory.mktemp("journal")))
        yield found
        found.journal.close(0)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "bug" in metafunc.fixturenames:
        metafunc.parametrize("bug", MUTANTS if nightly() else (), ids=str)


@pytest.mark.parametrize(("family", "name"), matrix.ONLY_SEEN_BY.items())
def test_each_family_refutes_the_bug_that_only_it_sees(session: Session, family: str, name: str) -> None:
    kind = matrix.refutation(session, MUTANTS[name], family)
    assert kind is not None and not kind.startswith("unknown"), kind


@pytest.mark.parametrize("family", matrix.families())
def test_no_other_family_sees_it(family: str) -> None:
    """By the recorded results, in which every family was asked."""
    seen = matrix.load()[matrix.ONLY_SEEN_BY[family]]
    assert set(seen) == set(matrix.families())
    assert [name for name, kind in seen.items() if kind is not None] == [family]


def test_results_are_those_of_the_seeded_bugs() -> None:
    results = matrix.load()
    assert set(results) == set(MUTANTS)
    for name, seen in results.items():
        assert set(seen) <= set(matrix.families())
        refuted = any(kind is not None for kind in seen.values())
        assert refuted or set(seen) == set(matrix.families()), f"{name} was not asked of every family"
        assert refuted or matrix.reason(MUTANTS[name]), f"{name}: say why no exhaustive scope shows it"


def test_the_table_in_the_docs_is_that_of_the_results() -> None:
    text = matrix.TABLE.read_text().split(matrix.BEGIN)[1].split(matrix.END)[0]
    assert text.strip() == matrix.table(matrix.load()), "run python -m tests.exhaustive_matrix --table"


def test_recorded_results_hold(session: Session, bug: str) -> None:
    """Every family asked again: what was recorded is what is seen."""
    mutant: Mutant = MUTANTS[bug]
    recorded = matrix.load()[bug]
    for family, kind in recorded.items():
        seen = matrix.refutation(session, mutant, family)
        assert (seen is None) == (kind is None), f"{family}: recorded {kind}, seen {seen}"
