"""``python -m refimpl.comparison``: the table of all paths in docs/paths.md, from real runs.

Collectives and bytes are counted while the path runs, answers on corner cases are asked for, and the verdict comes from
a run of the properties. Only the names of columns are written by hand.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from refimpl import bits, loading, probes
from refimpl.case import Call, Case
from refimpl.ranks.outcome import Run
from refimpl.ranks.runtime import Ranks
from refimpl.verdict.traffic import traffic
from refimpl.vocab.layouts import even_layout

PAGE = Path(__file__).resolve().parents[1] / "docs" / "paths.md"
PATHS = (loading.REFERENCE, *loading.SHIPPED_PATHS, *loading.PEER_PATHS)
TP_SIZES = (2, 4, 8)
# Qwen 3's vocabulary in bfloat16; 2, 4 and 8 divide it.
VOCAB_SIZE, DTYPE, BATCH = 151936, "bfloat16", 2
_NAMES = {"_allgather_base_": "all-gather", "allgather_": "all-gather", "allreduce_": "all-reduce"}


# -- what is measured ------------------------------------------------------------------------------------------------


def description(path: str) -> str:
    """The first sentence of the path's file, without importing it."""
    file = Path(__file__).parent.joinpath(*loading.qualified(path).partition(":")[0].split(".")[1:]).with_suffix(".py")
    return (ast.get_docstring(ast.parse(file.read_text())) or "").split("\n\n")[0].replace("\n", " ")


def sent(ranks: Ranks, path: str, tp_size: int) -> tuple[str, float]:
    """The collectives of one call in words, and bytes a row: of a gather its result, of a reduction its payload."""
    values = np.random.default_rng(0).normal(size=(BATCH, VOCAB_SIZE))
    case = Case((Call(even_layout(VOCAB_SIZE, tp_size), DTYPE, bits.encode(values, DTYPE)),))
    return collectives_in_words(ranks.run(case, path, count=True))


def collectives_in_words(run: Run) -> tuple[str, float]:
    """Of a run of one counted call of `BATCH` rows."""
    ((_, size),) = traffic(run)
    names = Counter(_NAMES.get(name, name) for name, _ in run.ranks[0].calls[0].collectives or ())
    return ", ".join(f"{count} {name}{'s' if count > 1 else ''}" for name, count in names.items()), size / BATCH


def measured_row(
    ranks: Ranks, path: str, *, all_probes: bool = True, tp_sizes: tuple[int, ...] = TP_SIZES
) -> list[str]:
    """The cells of one path: collectives, bytes at each tp_size, then the probes."""
    collectives: set[str] = set()
    sizes = []
    for tp_size in tp_sizes:
        kinds, size = sent(ranks, path, tp_size)
        collectives.add(kinds)
        sizes.append(f"{size:,.0f}")
    cells = [" or ".join(sorted(collectives)), *sizes]
    asked = [probe for probe in probes.PROBES if probe.cheap or all_probes]
    cells += [probes.words(probe, probes.ask(ranks, path, probe.asks())) for probe in asked]
    ranks.retire()
    return cells


def columns(all_probes: bool = True, tp_sizes: tuple[int, ...] = TP_SIZES) -> list[str]:
    shown = [probe.title for probe in probes.PROBES if probe.cheap or all_probes]
    return ["path", "collectives", *(f"bytes a row, tp {size}" for size in tp_sizes), *shown]


def measure(paths: tuple[str, ...] = PATHS) -> list[list[str]]:
    """The measured table, one row a path."""
    with Ranks(backend="gloo", limit=20.0) as ranks:
        return [[f"`{path}`", *measured_row(ranks, path)] for path in paths]


# -- the verdict -----------------------------------------------------------------------------------------------------

# Known divergences are of rows that a path is given; what a head makes of them is said of the head, not in this table.
ABOUT_HEADS = ("test_head", "test_drafting_loop")


@dataclass
class Verdict:
    """What runs of the properties said of one path: how many of its tests ended how."""

    held: int = 0
    expected: int = 0
    refused: int = 0
    not_run: int = 0
    failed: list[str] = field(default_factory=list)
    divergences: set[str] = field(default_factory=set)
    tp_sizes: list[int] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, report: Path, tp_size: int) -> None:
        """Take in a JUnit file. Raises ValueError for one that is none."""
        try:
            suites = ElementTree.parse(report).getroot()
        except ElementTree.ParseError as error:
            raise ValueError(f"{report} is no JUnit file: {error}; remove it to run the properties again") from error
        self.tp_sizes.append(tp_size)
        for suite in suites.iter("testsuite"):
            self.seconds += float(suite.get("time", 0))
        for test in suites.iter("testcase"):
            if any(word in str(test.get("classname")) for word in ABOUT_HEADS):
                continue
            skipped = test.find("skipped")
            if test.find("failure") is not None or test.find("error") is not None:
                self.failed.append(str(test.get("name")))
            elif skipped is None:
                self.held += 1
            elif "expected divergence" in (message := str(skipped.get("message"))):
                self.expected += 1
                self.divergences.update(re.findall(r"\[([a-z0-9-]+)\]", message))
            elif "refused" in message:
                self.refused += 1
            else:
                self.not_run += 1

    @property
    def words(self) -> str:
        if self.failed:
            return f"fails: {', '.join(sorted(self.failed))}"
        if self.divergences:
            return f"diverges as listed ({', '.join(sorted(self.divergences))}), holds elsewhere"
        return "holds" if not self.refused else "holds where it does not refuse"


def run_properties(path: str, tp_size: int, profile: str, report: Path, select: str | None = None) -> None:
    """The properties on one path at one tp_size, as a user runs them; ``report`` is the JUnit file to write."""
    partial = report.with_suffix(".partial")  # a run that is interrupted writes its report as well
    command = [sys.executable, "-m", "pytest", "properties/", f"--path={path}", f"--tp={tp_size}", "-q"]
    command += [f"--hypothesis-profile={profile}", f"--junitxml={partial}"]
    command += ["-k", " and ".join([*([f"({select})"] if select else []), *(f"not {word}" for word in ABOUT_HEADS)])]
    status = subprocess.run(command, cwd=PAGE.parents[1], stdout=subprocess.DEVNULL, check=False).returncode
    if status not in (0, 1):
        raise SystemExit(f"{' '.join(command[1:])} ended with status {status}; no verdict was written")
    partial.rename(report)


def verdicts(
    paths: tuple[str, ...],
    tp_sizes: tuple[int, ...],
    profile: str,
    runs: Path,
    select: str | None = None,
    *,
    reuse_only: bool = False,
) -> list[list[str]]:
    """One row a path. Runs that have no report in ``runs`` are made, or left out if ``reuse_only``."""
    rows = []
    for path in paths:
        verdict = Verdict()
        for tp_size in tp_sizes:
            report = runs / f"{path}-tp{tp_size}.xml"
            if not report.exists() and reuse_only:
                continue
            if not report.exists():
                print(f"running the properties on {path} at tp {tp_size}", file=sys.stderr)
                run_properties(path, tp_size, profile, report, select)
            verdict.add(report, tp_size)
        if not verdict.tp_sizes:
            rows.append([f"`{path}`", "not run yet", *["-"] * (len(VERDICT_COLUMNS) - 2)])
            continue
        sizes = ", ".join(map(str, verdict.tp_sizes))
        counts = [str(n) for n in (verdict.held, verdict.expected, verdict.refused, verdict.not_run)]
        run = f"{profile}, tp {sizes}" + (f", {select}" if select else "")
        rows.append([f"`{path}`", verdict.words, run, *counts, f"{verdict.seconds:.0f}"])
    return rows


VERDICT_COLUMNS = ["path", "verdict", "run", "held", "diverged as listed", "refused", "did not apply", "seconds"]


# -- the page --------------------------------------------------------------------------------------------------------


def markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def replace_block(page: str, name: str, content: str) -> str:
    """The page with what stands between the markers of ``name`` replaced. Raises ValueError where there are none."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if begin not in page or end not in page:
        raise ValueError(f"the page has no markers {begin} and {end}")
    head, _, rest = page.partition(begin)
    return f"{head}{begin}\n{content}\n{end}{rest.partition(end)[2]}"


def block(page: str, name: str) -> str:
    """What stands between the markers of ``name``."""
    return page.partition(f"<!-- {name}: begin -->\n")[2].partition(f"\n<!-- {name}: end -->")[0]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m refimpl.comparison", description=__doc__)
    parser.add_argument("--runs", type=Path, metavar="DIR", help="JUnit files PATH-tpN.xml; those it lacks are made")
    parser.add_argument("--hypothesis-profile", default="ci", choices=("dev", "ci", "nightly"))
    parser.add_argument("--tp", default="2,3,4", help="tp sizes of the verdict's runs (default: 2,3,4)")
    parser.add_argument("--paths", default="peers", help="whose verdicts: peers (default), own, or names, by commas")
    parser.add_argument(
        "--select", metavar="EXPRESSION", help="pytest's -k: only these properties; stands in the table"
    )
    parser.add_argument(
        "--reuse-only", action="store_true", help="make no runs; a path without any is said to have none"
    )
    parser.add_argument("--no-verdicts", action="store_true", help="leave the verdicts as they stand; takes seconds")
    options = parser.parse_args(argv)
    page = PAGE.read_text()
    listed = markdown(["path", "what it is"], [[f"`{path}`", description(path)] for path in PATHS])
    page = replace_block(page, "descriptions", listed)
    page = replace_block(page, "measured", markdown(columns(), measure()))
    if not options.no_verdicts:
        sizes = tuple(int(word) for word in options.tp.split(","))
        with tempfile.TemporaryDirectory() as folder:
            runs = options.runs or Path(folder)
            runs.mkdir(parents=True, exist_ok=True)
            paths = loading.expand(options.paths.split(","))
            rows = verdicts(
                paths, sizes, options.hypothesis_profile, runs.absolute(), options.select, reuse_only=options.reuse_only
            )
        page = replace_block(page, "verdicts", markdown(VERDICT_COLUMNS, rows))
    PAGE.write_text(page)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
