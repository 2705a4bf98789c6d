"""Run a recorded case from hidden states, or a drafting loop, again on ranks of its own."""

from __future__ import annotations

from pathlib import Path

from refimpl import heads, loading
from refimpl.case import CaseError
from refimpl.draft_case import DraftCase, is_draft_case
from refimpl.head_case import HeadCase, HeadRef
from refimpl.ranks.generations import PathUnusable, RanksUnavailable
from refimpl.ranks.head_runtime import OWN, HeadFacts, HeadRanks, facts_of
from refimpl.ranks.limits import Limits
from refimpl.ranks.outcome import Run
from refimpl.ranks.runtime import Ranks
from refimpl.replay import FIXED, REPEATS, STILL_FAILS, could_not, ranks_for, still_fails
from refimpl.verdict.draft_judge import judge_draft
from refimpl.verdict.head_judge import judge_head
from refimpl.verdict.judge import Judgement
from refimpl.verdict.kinds import Kind


def replay_head_case(file: Path, *, path: str | None, backend: str | None, limits: Limits) -> int:
    """Print ``fixed``, ``still fails`` or ``could not run`` and return 0, 1 or 4."""
    kept_as: type[HeadCase] | type[DraftCase] = DraftCase if is_draft_case(file) else HeadCase
    try:
        case, note = kept_as.load(file)
        heads.spelled(case.head.name)
    except (CaseError, heads.HeadError) as error:
        return could_not(f"{file}: {error}")
    if note.get("kind") == Kind.BAD_TABLE.value:
        return _replay_table(file, case.head, limits)
    path = path or note.get("path")
    if not isinstance(path, str) or not path:
        return could_not(f"{file}: it names no path; give one with --path")
    wrong = None if path == OWN else loading.check_argmax_path(path)
    if wrong:
        return could_not(f"{file}: {wrong}")
    loop = "the drafting loop of " if isinstance(case, DraftCase) else ""
    name = f"{loop}head {case.head.name} with {path} on tp {case.tp_size}"
    try:
        with ranks_for(note, backend, limits) as ranks:
            facts = facts_of(ranks, case.head, [case.tp_size])
            wrong = _does_not_fit(case, facts)
            if wrong:
                return could_not(f"{file}: {wrong}")
            if facts.own_tokens != (path == OWN):
                words = "answers for itself: leave --path out" if facts.own_tokens else "needs a path: give --path"
                return could_not(f"{file}: head {facts.name} {words}")
            asked = HeadRanks(ranks, path, facts, case.tp_size)
            run, judgement = _run(asked, case)
            for _ in range(REPEATS - 1):  # what depends on chance rarely shows at once
                if judgement.findings:
                    break
                ranks.retire()
                run, judgement = _run(asked, case)
    except (RanksUnavailable, PathUnusable, heads.HeadError, ValueError, OSError) as error:
        return could_not(f"{file}: {error}")
    if judgement.findings:
        return still_fails(name, judgement.findings, run)
    if judgement.refused is not None:
        return could_not(f"{file}: the case is refused: {judgement.refused}")
    print(f"fixed: {name} gives the full gather's tokens, {REPEATS} times")
    return FIXED


def _replay_table(file: Path, ref: HeadRef, limits: Limits) -> int:
    """Read the head's table again. No row is run under a wrong one: what the full gather gives then is not defined."""
    try:
        with Ranks(backend="gloo", limit=limits.case, setup_limit=limits.setup) as ranks:
            facts = facts_of(ranks, ref, [1])
    except (RanksUnavailable, heads.HeadError, ValueError, OSError) as error:
        return could_not(f"{file}: {error}")
    if facts.bad_table is not None:
        print(f"still fails: the table of head {ref.name}\n  {Kind.BAD_TABLE.value}: {facts.bad_table}")
        return STILL_FAILS
    if facts.d2t is None:
        print(f"fixed: head {ref.name} has no table any more")
    else:
        print(f"fixed: the table of head {ref.name}, {len(facts.d2t)} draft ids, is in range and injective")
    return FIXED


def _run(asked: HeadRanks, case: HeadCase | DraftCase) -> tuple[Run, Judgement]:
    if isinstance(case, DraftCase):
        run = asked.draft(case)
        return run, judge_draft(case, run)
    run = asked.run(case)
    return run, judge_head(case, run, asked.facts.d2t)


def _does_not_fit(case: HeadCase | DraftCase, facts: HeadFacts) -> str | None:
    """What keeps the head as it is now from being asked this case."""
    columns = case.layout.vocab_size
    if columns != facts.num_logits:
        return f"its layout has {columns} columns, the head makes {facts.num_logits} logits"
    if isinstance(case, DraftCase):
        return None if facts.starts_from_hidden_states else "the head has no weights to draft with"
    size = case.hidden_states.shape[1]
    if facts.input_size != size or facts.dtype != case.dtype:
        words = f"hidden states of {size} {case.dtype} values, the head takes {facts.input_size} {facts.dtype}"
        return f"it holds {words}"
    return None
