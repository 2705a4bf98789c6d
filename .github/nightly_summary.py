"""One run's JUnit file as Markdown, for the job's summary page and for the nightly issue.

    python .github/nightly_summary.py [--outcome OUTCOME] [--limit CHARACTERS] reports/NAME.xml

NAME is the title. The table of numbers that a run prints at its end is taken from reports/NAME.log, where that exists.
Exit status 1 if the run is red. A run is red too if it ran no test, left no readable JUnit file, or ended otherwise
than by success (--outcome, as GitHub calls the step that ran it) without a failure to show for it.

Standard library only: it must work where the installation of everything else has failed.
"""

from __future__ import annotations

import argparse
import html
import math
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

_PER_FAILURE = 3000  # characters; a report is one screen
_RULE = re.compile(r"^=+ (.+?) =+$")


@dataclass
class Run:
    """What a JUnit file says. ``failed`` is about the path under test, ``unknown`` about the suite itself."""

    tests: int = 0
    skipped: int = 0
    not_passed: int = 0
    seconds: float = 0.0
    failed: list[tuple[str, str]] = field(default_factory=list)
    unknown: list[tuple[str, str]] = field(default_factory=list)
    problem: str | None = None

    @property
    def passed(self) -> int:
        return self.tests - self.not_passed


def read_junit(file: Path) -> Run:
    run = Run()
    try:
        if file.exists() and not file.is_file():
            raise OSError("it is no regular file")
        root = ElementTree.parse(file).getroot()
        if root.tag not in ("testsuites", "testsuite"):
            raise ValueError(f"it begins with <{root.tag}>, not with <testsuites>")
        for suite in root.iter("testsuite"):
            seconds = float(suite.get("time") or 0)
            run.seconds += seconds if math.isfinite(seconds) else 0
        for case in root.iter("testcase"):
            run.tests += 1
            name = "::".join(part for part in (case.get("classname"), case.get("name")) if part)
            ended = {kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None}
            run.skipped += ended == {"skipped"}
            run.not_passed += bool(ended)
            for kind in ("failure", "error"):
                for element in case.findall(kind):
                    text = (element.text or element.get("message") or "").strip()
                    undecided = kind == "error" or text.startswith("UNKNOWN")
                    (run.unknown if undecided else run.failed).append((name, text))
    except FileNotFoundError:
        run.problem = "no JUnit file: the run ended before it could write one"
    except (OSError, ElementTree.ParseError, ValueError, LookupError) as error:  # LookupError: of an unknown encoding
        run.problem = f"the JUnit file cannot be read ({error})"
    return run


def verdict(run: Run, outcome: str) -> str:
    """``green``, or ``red: `` and why."""
    if run.problem:
        return f"red: {run.problem}"
    counts = [f"{len(what)} {word}" for what, word in ((run.failed, "failed"), (run.unknown, "unknown")) if what]
    if counts:
        return "red: " + ", ".join(counts)
    if run.tests == 0:
        return "red: no test ran"
    if run.tests == run.skipped:
        return "red: every test was skipped"
    if outcome != "success":
        return f"red: the step ended as {outcome} after {run.tests} tests, with no failure among them"
    return "green"


def numbers(log: Path) -> str:
    """The suite's own table at the end of a run's output."""
    try:
        if not log.is_file():
            return ""
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    section: list[str] | None = None
    for line in lines:
        rule = _RULE.match(line)
        if rule:
            if section:
                break
            section = [] if rule[1] == "argmax parity" else None
        elif section is not None:
            section.append(line)
    return "\n".join(section or []).strip()


def fenced(text: str) -> str:
    """A code block that no line of the text can close."""
    fence = "`" * max([2, *(len(run) for run in re.findall("`+", text))]) + "`"
    return f"{fence}text\n{text}\n{fence}\n"


def _details(name: str, text: str) -> str:
    cut = (
        text if len(text) <= _PER_FAILURE else text[:_PER_FAILURE] + "\n… cut here; the whole text is in the JUnit file"
    )
    return f"<details><summary><code>{html.escape(name)}</code></summary>\n\n{fenced(cut)}\n</details>\n"


def render(title: str, run: Run, outcome: str, table: str, limit: int) -> str:
    said = verdict(run, outcome)
    parts = [f"### {title}: {said}\n"]
    if run.problem is None:
        parts.append(
            "| tests | passed | failed | unknown | skipped | minutes |\n|--:|--:|--:|--:|--:|--:|\n"
            f"| {run.tests} | {run.passed} | {len(run.failed)} | {len(run.unknown)} | {run.skipped} "
            f"| {run.seconds / 60:.1f} |\n"
        )
    optional = [fenced(table)] if table else []
    optional += [_details(name, text) for name, text in run.failed + run.unknown]
    used = sum(map(len, parts))
    for index, part in enumerate(optional):
        if used + len(part) > limit:
            parts.append(f"… and {len(optional) - index} more; the JUnit file has them all\n")
            break
        parts.append(part)
        used += len(part)
    return "\n".join(parts)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("junit", type=Path, metavar="NAME.xml")
    parser.add_argument("--outcome", default="success", help="how the step ended that ran the tests")
    parser.add_argument("--limit", type=int, default=5000, metavar="CHARACTERS", help="of Markdown (default: 5000)")
    options = parser.parse_args(arguments)
    run = read_junit(options.junit)
    outcome = options.outcome or "skipped"
    table = numbers(options.junit.with_suffix(".log")) if options.junit.name else ""
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    print(render(options.junit.stem, run, outcome, table, options.limit))
    return 0 if verdict(run, outcome) == "green" else 1


if __name__ == "__main__":
    sys.exit(main())
