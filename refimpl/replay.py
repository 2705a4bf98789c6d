"""Run a recorded case again on ranks of its own."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from refimpl import engines, loading
from refimpl.case import Case, CaseError
from refimpl.draft_case import is_draft_case
from refimpl.engine_case import EngineCase, is_engine_case
from refimpl.head_case import is_head_case
from refimpl.ranks.engine_runtime import both, engine_facts
from refimpl.ranks.generations import PathUnusable, RanksUnavailable
from refimpl.ranks.limits import Limits
from refimpl.ranks.outcome import Run
from refimpl.ranks.runtime import Ranks
from refimpl.topk.case import is_topk_case
from refimpl.verdict import traffic
from refimpl.verdict.engine_judge import judge_engine
from refimpl.verdict.judge import Finding, Judgement, describe, judge
from refimpl.verdict.kinds import Kind
from refimpl.vocab.layouts import even_layout

FIXED, STILL_FAILS, COULD_NOT_RUN = 0, 1, 4
REPEATS = 4


def replay_case(file: Path, *, path: str | None, backend: str | None, limits: Limits) -> int:
    """Print ``fixed``, ``still fails`` or ``could not run`` and return 0, 1 or 4."""
    if is_head_case(file) or is_draft_case(file):
        from refimpl.head_replay import replay_head_case

        return replay_head_case(file, path=path, backend=backend, limits=limits)
    if is_engine_case(file):
        return _replay_engine(file, backend, limits)
    if is_topk_case(file):
        from refimpl.topk.replay import replay_topk_case

        return replay_topk_case(file, path=path, backend=backend, limits=limits)
    try:
        case, note = Case.load(file)
    except CaseError as error:
        return could_not(str(error))
    path = path or note.get("path")
    if not isinstance(path, str):
        return could_not(f"{file}: it names no path; give one with --path")
    wrong = loading.check_argmax_path(path)
    if wrong:
        return could_not(f"{file}: {wrong}")
    wrong = _unknown_words(note)
    if wrong:
        return could_not(f"{file}: {wrong}")
    tie_rule = note.get("tie_rule") or "target_id"
    if tie_rule not in ("target_id", "draft_id"):
        return could_not(f"{file}: tie_rule is {tie_rule!r}, it must be target_id or draft_id")
    try:
        with ranks_for(note, backend, limits) as ranks:
            run, verdict = _run(ranks, case, path, tie_rule)
            answers = [_answers(run)]
            for _ in range(REPEATS - 1):  # what depends on chance rarely shows at once
                if not verdict.findings:
                    run, verdict = _run(ranks, case, path, tie_rule)
                    answers.append(_answers(run))
            if verdict.holds and verdict.refused is None and note.get("kind") == Kind.COMMUNICATION.value:
                wrong = _growth(ranks, case, path)
                if wrong:
                    verdict.findings.append(Finding(Kind.COMMUNICATION, Kind.COMMUNICATION.value, 0, wrong))
    except (RanksUnavailable, PathUnusable, traffic.Uncountable, ValueError, OSError) as error:
        return could_not(f"{file}: {error}")
    if verdict.findings:
        return still_fails(f"{path} on tp {case.tp_size}", verdict.findings, run)
    if any(answer != answers[0] for answer in answers):
        print(f"still fails: {path} on tp {case.tp_size}\n  nondeterministic: {answers}")
        return STILL_FAILS
    if verdict.refused is not None:
        return could_not(f"{file}: the path refuses the case: {verdict.refused}")
    word = "fixed" if note.get("kind") else "holds"  # a case that was cut off has not failed
    if note.get("kind") == Kind.NONDETERMINISTIC.value:
        word = "not seen again"  # which chance may explain as well
    print(f"{word}: {path} on tp {case.tp_size} gives the reference's tokens, {REPEATS} times")
    return FIXED


def ranks_for(note: dict[str, Any], backend: str | None, limits: Limits, engine: str | None = None) -> Ranks:
    """Ranks on the backend asked for, or else on that of the case. Raises ValueError where there is none."""
    wanted = backend or note.get("backend") or "auto"
    return Ranks(backend=wanted, limit=limits.case, setup_limit=limits.setup, engine=engine)


def _unknown_words(note: dict[str, Any]) -> str | None:
    """What a file says that no report of this release does."""
    kinds = [kind.value for kind in Kind]
    if note.get("kind") is not None and note["kind"] not in kinds:
        return f"kind is {note['kind']!r}, which is no published failure kind"
    if note.get("backend") is not None and note["backend"] not in ("auto", "nccl", "gloo"):
        return f"backend is {note['backend']!r}, it must be auto, nccl or gloo"
    return None


def _replay_engine(file: Path, backend: str | None, limits: Limits) -> int:
    """The same for a case of a live engine, which must be installed here."""
    try:
        case, note = EngineCase.load(file)
    except CaseError as error:
        return could_not(str(error))
    wrong = engines.check_name(case.engine)
    if wrong:
        return could_not(f"{file}: {wrong}")
    try:
        with ranks_for(note, backend, limits, case.engine) as ranks:
            title = engine_facts(ranks, case.engine).title
            judgement = judge_engine(case, both(ranks, case))
    except (RanksUnavailable, engines.EngineUnusable, ValueError, OSError) as error:
        return could_not(f"{file}: {error}")
    if judgement.findings:
        print(f"still fails: {title} on tp {case.tp_size}: {case.words()}")
        for finding in judgement.findings:
            print("  " + "\n  ".join([f"{finding.identity}:", *finding.message.splitlines()]))
        return STILL_FAILS
    if judgement.refused is not None:
        return could_not(f"{file}: {title} refuses the case: {judgement.refused}")
    print(f"fixed: both answers of {title} on tp {case.tp_size} give the same tokens")
    return FIXED


def _run(ranks: Ranks, case: Case, path: str, tie_rule: str) -> tuple[Run, Judgement]:
    ranks.retire()
    run = ranks.run(case, path, count=True)
    return run, judge(case, run, tie_rule)


def _answers(run: Run) -> list[list[int]]:
    return [rank.calls[-1].tokens.tolist() for rank in run.ranks if rank.calls and rank.calls[-1].tokens is not None]


def _growth(ranks: Ranks, case: Case, path: str) -> str | None:
    """A case of several shapes shows growth by itself; one of a single shape is held against two ranks."""
    run = ranks.run(case, path, count=True)
    if len(case.calls) > 1:
        return traffic.growth_over_shapes(case, run)
    call = case.calls[0]
    few = Case((replace(call, layout=even_layout(call.layout.vocab_size, 2)),))
    return traffic.growth_over_ranks((few, ranks.run(few, path, count=True)), (case, run))


def still_fails(title: str, findings: list[Finding], run: Run) -> int:
    """Say what was found and how each rank ended; the exit status."""
    print(f"still fails: {title}")
    for finding in findings:
        print(f"  {finding.identity}: {finding.message.splitlines()[0]}")
    print("\n".join("  " + line for line in describe(run).splitlines()))
    return STILL_FAILS


def could_not(reason: str) -> int:
    """Say why no verdict was reached; the exit status."""
    print(f"could not run: {reason}", file=sys.stderr)
    return COULD_NOT_RUN
