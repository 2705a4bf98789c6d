"""Run a recorded top-k case again, on ranks of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from refimpl import loading
from refimpl.case import Case, CaseError
from refimpl.ranks.generations import PathUnusable, RanksUnavailable
from refimpl.ranks.limits import Limits
from refimpl.ranks.outcome import Run
from refimpl.ranks.runtime import Ranks
from refimpl.replay import FIXED, REPEATS, STILL_FAILS, could_not, ranks_for
from refimpl.topk.case import TopKCase, run
from refimpl.topk.judge import KINDS, TopKFinding, TopKJudgement, judge
from refimpl.verdict import traffic
from refimpl.verdict.judge import describe
from refimpl.verdict.kinds import Kind


def replay_topk_case(file: Path, *, path: str | None, backend: str | None, limits: Limits) -> int:
    """Print ``fixed``, ``still fails`` or ``could not run`` and return 0, 1 or 4."""
    try:
        case, note = TopKCase.load(file)
    except CaseError as error:
        return could_not(str(error))
    path = path or note.get("path")
    if not isinstance(path, str):
        return could_not(f"{file}: it names no path; give one with --topk-path")
    wrong = loading.check_topk_path(path) or _unknown_words(note)
    if wrong:
        return could_not(f"{file}: {wrong}")
    name = f"top-k path {path} on tp {case.tp_size}"
    try:
        with ranks_for(note, backend, limits) as ranks:
            outcome, verdict = _run(ranks, case, path, note)
            for _ in range(REPEATS - 1):  # what depends on chance rarely shows at once
                if not verdict.findings:
                    outcome, verdict = _run(ranks, case, path, note)
    except (RanksUnavailable, PathUnusable, traffic.Uncountable, ValueError, OSError) as error:
        return could_not(f"{file}: {error}")
    if verdict.findings:
        print(f"still fails: {name}")
        for finding in verdict.findings:
            print(f"  {finding.kind}: {finding.message.splitlines()[0]}")
        print("\n".join("  " + line for line in describe(outcome).splitlines()))
        return STILL_FAILS
    # A k that has no entries is to be refused, and that is no answer withheld.
    answerable = sum(entry.k <= entry.call.layout.vocab_size for entry in case.calls)
    if verdict.refused is not None and verdict.calls < answerable:
        return could_not(f"{file}: the path refuses the case: {verdict.refused}")
    answer = "gives the full gather's values and ids" if answerable else "refuses k, as it must"
    print(f"fixed: {name} {answer}, {REPEATS} times")
    return FIXED


def _unknown_words(note: dict[str, Any]) -> str | None:
    """What a file says that no report of this release does."""
    if note.get("kind") is not None and note["kind"] not in KINDS:
        return f"kind is {note['kind']!r}, which is no failure kind of top-k; docs/topk.md lists them"
    if note.get("backend") is not None and note["backend"] not in ("auto", "nccl", "gloo"):
        return f"backend is {note['backend']!r}, it must be auto, nccl or gloo"
    return None


def _run(ranks: Ranks, case: TopKCase, path: str, note: dict[str, Any]) -> tuple[Run, TopKJudgement]:
    about_traffic = note.get("kind") == Kind.COMMUNICATION.value
    ranks.retire()
    outcome = run(ranks, case, path, count=about_traffic)
    verdict = judge(case, outcome)
    if about_traffic and verdict.holds and verdict.refused is None:
        wrong = traffic.growth_over_shapes(Case(case.plain.calls), outcome)
        if wrong:
            verdict.findings.append(TopKFinding(Kind.COMMUNICATION.value, 0, wrong))
    return outcome, verdict
