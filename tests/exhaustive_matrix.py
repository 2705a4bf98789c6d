"""Which exhaustive family refutes which seeded bug: ``python -m tests.exhaustive_matrix [--every] [-k WORD]``.

Each family is run by itself, sampling off, on each seeded bug, up to its first failure, which is not reduced. Without
``--every`` the families are asked in turn until one refutes the bug; with it each of them is asked. Results are kept in
``tests/exhaustive_refutations.json``, from which the table in ``docs/exhaustive.md`` is made.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import pkgutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import properties
import refimpl.profiles  # noqa: F401  registers them
from refimpl.case import Case
from refimpl.ranks.journal import Journal
from refimpl.ranks.outcome import Run
from refimpl.ranks.runtime import Ranks
from refimpl.session import FAILURES, Checker, Failure, Session, Unknown
from refimpl.verdict.judge import Finding
from refimpl.verdict.reduce import Counterexample
from tests.mutants import Mutant, all_mutants

RESULTS = Path(__file__).with_name("exhaustive_refutations.json")
TABLE = Path(__file__).resolve().parents[1] / "docs" / "exhaustive.md"
BEGIN, END = "<!-- generated: seeded bugs -->", "<!-- end of generated -->"
RANK_TIMEOUT = 4.0

# A bug of each family that no other family refutes: what the family is for.
ONLY_SEEN_BY = {
    "orderings": "columns:tail_compared_with_its_neighbour",
    "payload": "special_values:subnormals_become_zero",
    "widths": "columns:later_block_wins_ties",
    "layouts": "padding:shard_discarded_where_padding_wins",
    "tables": "ties:target_ids_decide_across_ranks_only",
    "independence": "faults:empty_batch_raises",
    "uniformity": "collectives:sure_winner_returns_early",
}

# Why no exhaustive scope shows it: by the bug's name where the reason is its own, else by its family.
OUT_OF_SIGHT: dict[str, str] = {
    "traffic": "right tokens by the wrong means: no obligation is about cost, `test_communication.py` counts bytes",
}


def families() -> dict[str, list[Callable[..., Any]]]:
    """Family to its properties, those first that refute most in little time."""
    found = {}
    for module in pkgutil.iter_modules(properties.__path__):
        if module.name.startswith("test_exhaustive_") and module.name != "test_exhaustive_sweeps":
            loaded = importlib.import_module(f"properties.{module.name}")
            tests = [f for name, f in inspect.getmembers(loaded, inspect.isfunction) if name.startswith("test_")]
            found[module.name.removeprefix("test_exhaustive_")] = tests
    order = ("orderings", "uniformity", "independence", "layouts", "tables", "widths", "payload")
    assert sorted(order) == sorted(found)
    return {name: found[name] for name in order}


class Probe(Checker):
    """A checker that reports the first failure as it is seen."""

    def _reduce(self, case: Case, run: Run, findings: list[Finding], tie_rule: str) -> Failure:
        first = findings[0]
        counterexample = Counterexample(first.kind, first.identity, case, tie_rule, run, first)
        return FAILURES[first.kind](counterexample)


class _All:
    """Reference and NumPy have agreed with every batch already: a right path's run shows that."""

    def __contains__(self, label: str) -> bool:
        return True

    def add(self, label: str) -> None: ...


def open_session(ranks: Ranks, folder: Path) -> Session:
    session = Session(ranks, Journal(folder, "matrix"))
    session.shown = _All()  # type: ignore[assignment]
    return session


def _needed_tp(test: Callable[..., Any]) -> int:
    return max((mark.args[0] for mark in getattr(test, "pytestmark", []) if mark.name == "needs_tp"), default=1)


def refutation(session: Session, mutant: Mutant, family: str) -> str | None:
    """The kind under which a family refutes a seeded bug, or None where it holds."""
    for test in families()[family]:
        if _needed_tp(test) > mutant.tp_sizes[0]:
            continue
        session.failed.clear()
        try:
            test(Probe(session, mutant.spec, mutant.tp_sizes[0], test.__name__))
        except Failure as failure:
            return failure.kind.value
        except pytest.skip.Exception:
            continue
        except Unknown as error:
            return f"unknown: {str(error).splitlines()[0]}"
    return None


def measure(session: Session, chosen: list[Mutant], every: bool) -> Iterator[tuple[Mutant, dict[str, str | None]]]:
    for mutant in chosen:
        seen: dict[str, str | None] = {}
        for family in families():
            seen[family] = refutation(session, mutant, family)
            if seen[family] is not None and not every:
                break
        yield mutant, seen


def load() -> dict[str, dict[str, str | None]]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def key(mutant: Mutant) -> str:
    return f"{mutant.family}:{mutant.name}"


def reason(mutant: Mutant) -> str | None:
    return OUT_OF_SIGHT.get(key(mutant)) or OUT_OF_SIGHT.get(mutant.family)


def table(results: dict[str, dict[str, str | None]]) -> str:
    """The documentation's table: bug, the families that refuted it and as what; and why none did."""
    lines = ["| seeded bug | refuted by | not by |", "|---|---|---|"]
    unseen = []
    for mutant in all_mutants():
        seen = results.get(key(mutant), {})
        by = [f"{family} ({kind})" for family, kind in seen.items() if kind is not None]
        others = [family for family, kind in seen.items() if kind is None]
        if by:
            lines.append(f"| `{key(mutant)}` | {', '.join(sorted(by))} | {', '.join(sorted(others))} |")
        else:
            unseen.append(f"| `{key(mutant)}` | {reason(mutant)} |")
    count = len(lines) - 2
    text = [f"{count} of {count + len(unseen)} seeded bugs are refuted by the exhaustive families alone.", ""]
    text += ["| not refuted | why |", "|---|---|", *unseen, ""]
    text += [
        "A family stands under *not by* where it was asked and held; most bugs were not asked of every family.",
        "",
    ]
    return "\n".join([*text, *lines])


def write_table() -> None:
    text = TABLE.read_text()
    head, tail = text.split(BEGIN)[0], text.split(END)[1]
    TABLE.write_text(f"{head}{BEGIN}\n{table(load())}\n{END}{tail}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.exhaustive_matrix", description=__doc__.splitlines()[0])
    parser.add_argument("--every", action="store_true", help="ask every family, not only until one refutes")
    parser.add_argument("--missing", action="store_true", help="only bugs without a result yet")
    parser.add_argument("--table", action="store_true", help="only write the table anew")
    parser.add_argument("-k", default="", help="only bugs whose family:name holds this word")
    options = parser.parse_args()
    if options.table:
        write_table()
        return 0
    settings.load_profile("dev")
    results = load()
    chosen = [m for m in all_mutants() if options.k in key(m) and not (options.missing and key(m) in results)]
    with Ranks(backend="gloo", limit=RANK_TIMEOUT) as ranks, tempfile.TemporaryDirectory() as folder:
        session = open_session(ranks, Path(folder))
        start = time.monotonic()
        for mutant, seen in measure(session, chosen, options.every):
            results[key(mutant)] = {**results.get(key(mutant), {}), **seen}
            RESULTS.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n")
            by = {family: kind for family, kind in seen.items() if kind is not None}
            print(f"{time.monotonic() - start:6.1f} s  {key(mutant)}: {by or 'not refuted'}", flush=True)
        session.journal.close(0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
