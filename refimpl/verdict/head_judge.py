"""The judge of a case from hidden states: plain observations, before anything is asked about their cause."""

from __future__ import annotations

import numpy as np

from refimpl.head_case import HeadCase
from refimpl.ranks.outcome import NAN_ROW, NEG_INF_ROW, Run
from refimpl.verdict.judge import Finding, Judgement, Tally, judge_ends
from refimpl.verdict.kinds import Kind


def judge_head(case: HeadCase, run: Run, d2t: np.ndarray | None) -> Judgement:
    """What both answers gave. Rows on which they differ are `Kind.OTHER_LOGITS` until the cause is known."""
    judgement = Judgement()
    broken = judge_ends(run)
    if broken is not None:
        judgement.findings.append(broken)
        return judgement
    outcomes = [rank.calls[0] for rank in run.ranks]
    if {outcome.status for outcome in outcomes} == {"refused"}:
        judgement.refused = outcomes[0].message
        judgement.tally.refused_calls += 1
        return judgement

    def found(kind: Kind, message: str, rows: np.ndarray | None = None, ranks: tuple[int, ...] = ()) -> None:
        listed = () if rows is None else tuple(int(row) for row in rows)
        judgement.findings.append(Finding(kind, kind.value, 0, message, listed, ranks))

    issued = {outcome.issued for outcome in outcomes}
    if len(issued) > 1:
        counts = ", ".join(f"rank {rank}: {outcome.issued}" for rank, outcome in enumerate(outcomes))
        found(Kind.COLLECTIVE_MISMATCH, f"collectives issued: {counts}")
    differ = {rank: o.logits_differ for rank, o in enumerate(outcomes) if o.logits_differ is not None}
    if differ:
        rank, (row, column) = min(differ.items())
        message = f"rank {rank}: row {row}, local column {column}: other logits when computed a second time"
        found(Kind.OTHER_LOGITS, message, np.array([row]), tuple(differ))
    tokens = np.stack([outcome.tokens for outcome in outcomes if outcome.tokens is not None])
    reference = np.stack([outcome.reference for outcome in outcomes if outcome.reference is not None])
    differing = (tokens != tokens[0]).any(axis=0)
    if differing.any():
        row = int(np.flatnonzero(differing)[0])
        answers = ", ".join(f"rank {rank}: {tokens[rank][row]}" for rank in range(len(tokens)))
        found(Kind.RANK_DISAGREEMENT, f"row {row}: {answers}", np.flatnonzero(differing))
    ties = outcomes[0].ties
    holds = np.zeros(case.num_rows, np.int64) if ties is None else ties[:, 2]
    filler = (holds == NEG_INF_ROW) & (d2t is not None)
    truth = outcomes[0].truth
    full_is_wrong = (reference != reference[0]).any(axis=0)
    if truth is not None:
        full_is_wrong |= (reference[0] != truth) & ~filler
    if full_is_wrong.any():
        row = int(np.flatnonzero(full_is_wrong)[0])
        what = f"the engine's full gather gives {reference[0][row]}"
        expected = (
            "other tokens on other ranks" if truth is None else f"the argmax of the head's logits is {truth[row]}"
        )
        found(Kind.FULL_PATH, f"row {row}: {what}, {expected}", np.flatnonzero(full_is_wrong))
    # Where the full gather itself is wrong, the local answer is held against the logits.
    right = reference[0] if truth is None else np.where(full_is_wrong, truth, reference[0])
    wrong = ~differing & (tokens[0] != right)
    if d2t is not None:
        wrong &= ~(filler & ((tokens[0] == 0) | (tokens[0] == d2t[0])))
    if wrong.any() and not differ:
        row = int(np.flatnonzero(wrong)[0])
        message = f"row {row}: returned {tokens[0][row]}, expected {right[row]}"
        found(Kind.OTHER_LOGITS, message, np.flatnonzero(wrong))
    judgement.tally.add(
        Tally(
            calls=1,
            rows=case.num_rows,
            tied_rows=0 if ties is None else int((ties[:, 0] > 1).sum()),
            cross_shard_ties=0 if ties is None else int((ties[:, 1] > 1).sum()),
            nan_rows=int((holds == NAN_ROW).sum()),
            filler_rows=int(filler.sum()),
            filler_differs=int((filler & (tokens[0] != right)).sum()),
        )
    )
    return judgement
