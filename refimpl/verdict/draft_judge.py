"""The judge of a drafting loop: plain observations of both loops on all ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from refimpl.draft_case import DraftCase, Loops
from refimpl.ranks.outcome import CallOutcome, RankOutcome, Run
from refimpl.verdict.judge import Finding, Judgement, Tally, judge_ends
from refimpl.verdict.kinds import Kind


def judge_draft(case: DraftCase, run: Run) -> Judgement:
    """``Finding.call`` is the draft step, ``rows`` are places in ``case.sequences``.

    Another token than the full gather's is `Kind.ROW_DEPENDENCE` here: whether each step alone agrees, others ask.
    """
    judgement = Judgement()
    ended = judge_ends(run)
    if ended is not None:
        reached = {rank: run.ranks[rank].reached or (0, "nothing yet") for rank in ended.ranks}
        where = "; ".join(f"rank {rank} in draft step {step} of {what}" for rank, (step, what) in reached.items())
        step = max((step for step, _ in reached.values()), default=ended.call)
        judgement.findings.append(replace(ended, call=step, message=f"{where}\n{ended.message}"))
        return judgement
    last = [rank.calls[-1] for rank in run.ranks]
    if {outcome.status for outcome in last} == {"refused"}:
        step = len(run.ranks[0].calls) - 1
        late = max(outcome.issued for outcome in last)
        if late > 0:
            message = f"draft step {step}: refused ({last[0].message}) after {late} collective(s)"
            judgement.findings.append(Finding(Kind.REFUSED_LATE, Kind.REFUSED_LATE.value, step, message))
        elif step:
            message = f"draft step {step}: refused ({last[0].message}), though steps of the same form were answered"
            judgement.findings.append(Finding(Kind.ROW_DEPENDENCE, Kind.ROW_DEPENDENCE.value, step, message))
        judgement.refused = last[0].message
        return judgement
    loops = Loops.of(run)
    if loops is None:
        raise ValueError("the ranks answered without their loops")
    for step in range(case.steps):
        _judge_call(step, [rank.calls[step] for rank in run.ranks], judgement)
    for kind, other, words in (
        (Kind.FULL_PATH, _first([loop.drafted != loops.full[0].drafted for loop in loops.full]), "full gather gives"),
        (Kind.RANK_DISAGREEMENT, _first([loop.drafted != loops.local[0].drafted for loop in loops.local]), "drafted"),
    ):
        if other is not None:
            step, row, rank = other
            which = loops.full if kind is Kind.FULL_PATH else loops.local
            tokens = ", ".join(f"rank {place}: {loop.drafted[step, row]}" for place, loop in enumerate(which))
            message = f"draft step {step}, sequence {case.sequences[row]}: {words} {tokens}"
            judgement.findings.append(Finding(kind, kind.value, step, message, (row,), (rank,)))
    full, path = loops.full[0], loops.local[0]
    differs = _first([(path.drafted != full.drafted) | (path.greedy != full.greedy)])
    if differs is not None and judgement.holds:
        step, row, _ = differs
        message = (
            f"draft step {step}, sequence {case.sequences[row]}: drafted {path.drafted[step, row]}, by the full gather "
            f"{full.drafted[step, row]}; accepted tokens {path.accepted[row]}, by the full gather {full.accepted[row]}"
        )
        kind = Kind.ROW_DEPENDENCE
        judgement.findings.append(Finding(kind, kind.value, step, message, (row,)))
    judgement.tally.add(Tally(calls=case.steps, rows=case.num_rows))
    return judgement


def _first(differing: list[np.ndarray]) -> tuple[int, int, int] | None:
    """Step, row and rank of the first place, in the order of steps, where any of ``(steps, batch)`` is true."""
    places = np.argwhere(np.stack(differing, axis=-1))
    return None if not len(places) else tuple(int(number) for number in places[0])  # type: ignore[return-value]


def _judge_call(step: int, outcomes: list[CallOutcome], judgement: Judgement) -> None:
    def found(kind: Kind, message: str, ranks: tuple[int, ...] = ()) -> None:
        if all(finding.kind is not kind for finding in judgement.findings):
            judgement.findings.append(Finding(kind, kind.value, step, f"draft step {step}: {message}", (), ranks))

    if len({outcome.issued for outcome in outcomes}) > 1:
        counts = ", ".join(f"rank {rank}: {outcome.issued}" for rank, outcome in enumerate(outcomes))
        found(Kind.COLLECTIVE_MISMATCH, f"collectives issued: {counts}")
    for rank, outcome in enumerate(outcomes):
        if outcome.modified is not None:
            row, column = outcome.modified
            found(Kind.INPUT_MODIFIED, f"rank {rank}: row {row}, local column {column} was changed", (rank,))
        elif outcome.table_modified:
            found(Kind.INPUT_MODIFIED, f"rank {rank}: the table was changed", (rank,))


def one_row(run: Run, step: int, row: int) -> Run:
    """What the ranks gave for one row of one step, as the run of a case of one call: for a report."""
    loops = Loops.of(run)
    if loops is None:
        return run
    ranks = []
    for rank, outcome in enumerate(run.ranks):
        tokens = loops.local[rank].drafted[step, row : row + 1]
        reference = loops.full[rank].drafted[step, row : row + 1]
        ranks.append(RankOutcome((replace(outcome.calls[step], tokens=tokens, reference=reference),)))
    return replace(run, ranks=tuple(ranks))
