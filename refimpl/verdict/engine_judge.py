"""The judge of a live engine: its local reduction against its own full gather, and both against its own logits.

One answer that comes while the other breaks is a divergence, and so is an input that ends a process or is never
answered, whichever answer was asked for. Where both raise there is nothing to compare; what the engine refuses up front
is a refusal. Both are counted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np

from refimpl import bits
from refimpl.case import Call
from refimpl.engine_case import EngineCase
from refimpl.ranks.engine_runtime import BothAnswers
from refimpl.ranks.outcome import NAN_ROW, NEG_INF_ROW, CallOutcome, RankOutcome, Run
from refimpl.verdict.engine_topk import judge_topk, merged_topk
from refimpl.verdict.head_judge import judge_head
from refimpl.verdict.judge import Finding, Judgement, classify, describe, judge_ends
from refimpl.verdict.kinds import Kind

NEITHER = "neither answers"
_CLASSIFIED_ROWS = 64
# By which of these a process ends whose memory was spoilt is chance.
_OF_MEMORY = ("SIGSEGV", "SIGBUS", "SIGABRT")


def judge_engine(case: EngineCase, answers: BothAnswers) -> Judgement:
    """Findings with their cause as far as the rows tell it; see `refimpl.verdict.engine_reduce` for the rest."""
    judgement = Judgement()
    full_end, local_end = _end(answers.full), _end(answers.local)
    if local_end is None and _is_refused(answers.local):
        judgement.refused = answers.local.ranks[0].calls[0].message
        judgement.tally.refused_calls += 1
    elif (full_end is not None or _is_refused(answers.full)) and local_end is not None:
        both_ends = f"full gather {_short(answers.full)}; local reduction {_short(answers.local)}"
        gone = [end for end in (local_end, full_end) if end is not None and end.kind in (Kind.DIED, Kind.HANG)]
        if gone:
            judgement.findings.append(replace(gone[0], message=both_ends))
        else:
            judgement.refused = f"{NEITHER}: {both_ends}"
            judgement.tally.refused_calls += 1
    elif local_end is not None:
        words = f"the full gather answers, the local reduction does not:\n{describe(answers.local)}"
        judgement.findings.append(replace(local_end, message=words))
    elif full_end is not None:
        words = f"the local reduction answers, the full gather does not:\n{describe(answers.full)}"
        judgement.findings.append(Finding(Kind.FULL_PATH, f"{Kind.FULL_PATH.value}:{full_end.identity}", 0, words))
    elif _is_refused(answers.full):
        judgement.findings.append(_answer_to_no_question(case, answers))
    elif case.options.k is not None:
        judgement = judge_topk(case, answers)
    else:
        judgement = judge_head(cast(Any, case), merged(case, answers), case.d2t)
        judgement.findings = [named for finding in judgement.findings for named in _named(case, answers, finding)]
    return judgement


def _is_refused(run: Run) -> bool:
    return {rank.calls[-1].status for rank in run.ranks if rank.calls and rank.end is None} == {"refused"}


def _end(run: Run) -> Finding | None:
    """How a run ended that did not come through. The signal of a process with spoilt memory is not told apart."""
    end = judge_ends(run)
    if end is not None and end.identity.removeprefix(f"{Kind.DIED.value}:") in _OF_MEMORY:
        return replace(end, identity=f"{Kind.DIED.value}:memory")
    return end


def _answer_to_no_question(case: EngineCase, answers: BothAnswers) -> Finding:
    """The full logits have no k entries, and yet the local reduction names some."""
    words = f"the local reduction answers, the full gather has no such answer:\n{describe(answers.full)}"
    if (case.options.k or 0) > case.options.vocab_size:
        return Finding(Kind.RESULT_TYPE, Kind.RESULT_TYPE.value, 0, words)
    return Finding(Kind.FULL_PATH, f"{Kind.FULL_PATH.value}:refused", 0, words)


def _short(run: Run) -> str:
    return describe(run).splitlines()[0].partition(": ")[2]


def merged(case: EngineCase, answers: BothAnswers) -> Run:
    """Both answers as one outcome a rank; of a run that did not come through, the one that broke."""
    if not answers.local.complete or any(rank.calls[0].status == "refused" for rank in answers.local.ranks):
        return answers.local
    if not answers.full.complete:
        return answers.full
    if case.options.k is not None:
        return merged_topk(answers)
    ties = _ties(case, answers.logits)
    ranks = []
    for full, local in zip(answers.full.ranks, answers.local.ranks, strict=True):
        tokens = local.calls[0].tokens
        call = CallOutcome(
            "answered", reference=full.calls[0].tokens, tokens=tokens, ties=ties, truth=answers.truth, issued=0
        )
        ranks.append(RankOutcome((call,)))
    return Run(tuple(ranks), answers.local.limit)


def _ties(case: EngineCase, logits: np.ndarray | None) -> np.ndarray | None:
    """int64 ``(rows, 3)`` as `refimpl.ranks.outcome.CallOutcome.ties`."""
    if logits is None:
        return None
    values = bits.decode(logits, case.options.logits_dtype)
    nan = np.isnan(values)
    top = np.where(nan, -np.inf, values).max(axis=1)
    tied = np.where(nan.any(axis=1)[:, None], nan, values == top[:, None])
    shards = sum(tied[:, start:end].any(axis=1).astype(np.int64) for start, end in case.layout.bounds)
    holds = np.where(nan.any(axis=1), NAN_ROW, np.where(top == -np.inf, NEG_INF_ROW, 0))
    return np.stack([tied.sum(axis=1), shards, holds], axis=1).astype(np.int64)


def shown_call(case: EngineCase, answers: BothAnswers) -> Call:
    """The lm_head's own logits as a call, after cap and scale where the engine gave them."""
    logits = case.given_logits() if answers.logits is None else answers.logits
    return Call(case.layout, case.options.logits_dtype, np.ascontiguousarray(logits), (0,), case.d2t)


def _named(case: EngineCase, answers: BothAnswers, finding: Finding) -> list[Finding]:
    """A difference of tokens by what the row says; several kinds where rows differ in it."""
    if finding.kind is not Kind.OTHER_LOGITS:
        return [finding]
    tokens = answers.local.ranks[0].calls[0].tokens
    assert tokens is not None
    call = shown_call(case, answers)
    kinds: dict[Kind, list[int]] = {}
    for row in finding.rows[:_CLASSIFIED_ROWS]:
        kinds.setdefault(classify(call, row, int(tokens[row])), []).append(row)
    found = []
    for kind, rows in kinds.items():
        words = f"row {rows[0]}: the local reduction gives {tokens[rows[0]]}"
        found.append(Finding(kind, kind.value, 0, words, tuple(rows), finding.ranks))
    return found
