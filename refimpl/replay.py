"""Run a recorded case again on ranks of its own."""

from __future__ import annotations

import sys
from pathlib import Path

from refimpl import loading
from refimpl.case import Case, CaseError
from refimpl.ranks.outcome import Run
from refimpl.ranks.runtime import PathUnusable, Ranks, RanksUnavailable
from refimpl.verdict.judge import Judgement, describe, judge
from refimpl.verdict.kinds import Kind

FIXED, STILL_FAILS, COULD_NOT_RUN = 0, 1, 4
_REPEATS = 4


def replay_case(file: Path, *, path: str | None, backend: str | None, limit: float) -> int:
    """Print ``fixed``, ``still fails`` or ``could not run`` and return 0, 1 or 4."""
    try:
        case, note = Case.load(file)
    except CaseError as error:
        return _could_not(str(error))
    path = path or note.get("path")
    if not isinstance(path, str):
        return _could_not(f"{file}: it names no path; give one with --path")
    wrong = loading.check_form(path)
    if wrong:
        return _could_not(f"{file}: {wrong}")
    tie_rule = note.get("tie_rule") or "target_id"
    if tie_rule not in ("target_id", "draft_id"):
        return _could_not(f"{file}: tie_rule is {tie_rule!r}, it must be target_id or draft_id")
    kind = note.get("kind")
    try:
        with Ranks(backend=backend or note.get("backend") or "auto", limit=limit) as ranks:
            answers = []
            for _ in range(_REPEATS):  # what depends on chance or on earlier calls rarely shows at once
                ranks.retire()
                run = ranks.run(case, path, count=kind == Kind.COMMUNICATION.value)
                verdict = _judge(case, run, tie_rule, kind)
                if verdict.findings:
                    break
                answers.append([rank.calls[-1].tokens.tolist() for rank in run.ranks if rank.calls[-1].tokens is not None])
    except (RanksUnavailable, PathUnusable, ValueError, OSError) as error:
        return _could_not(f"{file}: {error}")
    if verdict.findings:
        print(f"still fails: {path} on tp {case.tp_size}")
        for finding in verdict.findings:
            print(f"  {finding.identity}: {finding.message.splitlines()[0]}")
        print("\n".join("  " + line for line in describe(run).splitlines()))
        return STILL_FAILS
    if any(answer != answers[0] for answer in answers):
        print(f"still fails: {path} on tp {case.tp_size}\n  nondeterministic: {answers}")
        return STILL_FAILS
    if verdict.refused is not None:
        return _could_not(f"{file}: the path refuses the case: {verdict.refused}")
    print(f"fixed: {path} on tp {case.tp_size} gives the reference's tokens, {_REPEATS} times")
    return FIXED


def _judge(case: Case, run: Run, tie_rule: str, kind: object) -> Judgement:
    verdict = judge(case, run, tie_rule)
    if kind == Kind.COMMUNICATION.value and verdict.holds:
        from refimpl.verdict.traffic import judge_traffic

        finding = judge_traffic(case, run)
        if finding is not None:
            verdict.findings.append(finding)
    return verdict


def _could_not(reason: str) -> int:
    print(f"could not run: {reason}", file=sys.stderr)
    return COULD_NOT_RUN
