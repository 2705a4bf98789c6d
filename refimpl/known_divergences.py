"""The adopter's file of known divergences, ``--known-divergences=FILE``: what it says, and what it does to a run.

A line is a test id (its failure is then expected), a test id with the identity of one divergence (of live engines), or
a line about rows of a path (`refimpl.verdict.expected`). A reason follows after ``#``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from refimpl import places
from refimpl.session import Failure
from refimpl.topk.checker import TopKFailure
from refimpl.verdict import expected

_NO_REASON = "known divergence"


@dataclass(frozen=True)
class KnownDivergences:
    """``tests``: ids and reasons, in the file's order. ``rows``: the lines about rows of a path."""

    name: str = ""
    tests: tuple[tuple[str, str], ...] = ()
    rows: tuple[expected.Expected, ...] = ()


def read(name: str, directory: Path) -> KnownDivergences:
    """Raises pytest.UsageError for a file that cannot be read and a line that is of no kind."""
    try:
        wrong = places.no_regular_file(directory / name)
        if wrong:
            raise pytest.UsageError(f"--known-divergences={name}: {wrong}; give a text file with a test id a line")
        lines = (directory / name).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        words = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise pytest.UsageError(
            f"--known-divergences={name}: it cannot be read ({words}); give a text file with a test id a line"
        ) from error
    tests: list[tuple[str, str]] = []
    rows: list[expected.Expected] = []
    for number, line in enumerate(lines, 1):
        test_id, _, reason = (part.strip() for part in line.partition("#"))
        if "::" in test_id:
            tests.append((test_id, reason or _NO_REASON))
        elif test_id:
            try:
                rows += expected.parse(line)
            except expected.ExpectedError as error:
                words = str(error).removeprefix("line 1: ")
                raise pytest.UsageError(
                    f"--known-divergences={name}: line {number}: {words}, and no test id either"
                ) from error
    return KnownDivergences(name, tuple(tests), tuple(rows))


def apply(known: KnownDivergences, config: pytest.Config, items: list[pytest.Item]) -> dict[str, dict[str, str]]:
    """Mark the tests named; return, by test, the identities of an engine's divergences that are known, with reasons."""
    identities: dict[str, dict[str, str]] = {}
    for test_id, reason in known.tests:
        matching = _items_of(test_id, items)
        for item in matching:
            item.add_marker(pytest.mark.xfail(reason=reason, raises=(Failure, TopKFailure), strict=False))
        if matching:
            continue
        of_engine, _, identity = test_id.rpartition(" ")
        matching = _items_of(of_engine.strip(), items) if of_engine else []
        for item in matching:
            identities.setdefault(item.nodeid, {})[identity] = reason
        if not matching:
            config.issue_config_time_warning(
                pytest.PytestWarning(f"--known-divergences={known.name}: {test_id} matches no test of this run"),
                stacklevel=2,
            )
    return identities


def _items_of(test_id: str, items: list[pytest.Item]) -> list[pytest.Item]:
    return [item for item in items if item.nodeid == test_id or item.nodeid.startswith(test_id + "[")]
