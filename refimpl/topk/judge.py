"""The judge of top-k answers: against the NumPy oracle, the reference, the other ranks and the contract's form."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from refimpl import bits
from refimpl.ranks.outcome import Run
from refimpl.topk.case import TopKCall, TopKCase
from refimpl.topk.oracle import oracle_topk
from refimpl.verdict.judge import judge_ends
from refimpl.verdict.kinds import DESCRIPTIONS, Kind

# Of a wrong answer: what is wrong at the first entry that is. Other kinds are those of any path.
ENTRY_KINDS = {
    "id-out-of-range": "the entry's id is none of the vocabulary, or of the table's targets",
    "repeated-id": "the entry's id stands in the row a second time",
    "value-mismatch": "the entry's value is not the logit of its id",
    "nan-rule": "the row holds a NaN, and the entry is another one than the rule's",
    "wrong-tie": "the entry's value is right, its id is not the lowest that is left",
    "wrong-entry": "the entry's value is not that of its place in falling order",
}
KINDS = {**{kind.value: text for kind, text in DESCRIPTIONS.items()}, **ENTRY_KINDS}


@dataclass(frozen=True)
class TopKFinding:
    """One failure. ``place``: the first wrong entry of the first row in ``rows``, where a row is at fault."""

    kind: str
    call: int
    message: str
    rows: tuple[int, ...] = ()
    place: int = 0


@dataclass
class TopKJudgement:
    findings: list[TopKFinding] = field(default_factory=list)
    refused: str | None = None
    calls: int = 0
    rows: int = 0
    tied_rows: int = 0  # with equal entries in the top k, or at its edge
    nan_rows: int = 0

    @property
    def holds(self) -> bool:
        return not self.findings


def judge(case: TopKCase, run: Run) -> TopKJudgement:
    judgement = TopKJudgement()
    broken = judge_ends(run)
    if broken is not None:
        judgement.findings.append(TopKFinding(broken.kind.value, broken.call, broken.message))
        return judgement
    for index, entry in enumerate(case.calls):
        outcomes = [rank.calls[index] for rank in run.ranks]
        exists = 1 <= entry.k <= entry.call.layout.vocab_size
        if {outcome.status for outcome in outcomes} == {"refused"}:
            judgement.refused = outcomes[0].message
            late = max(outcome.issued for outcome in outcomes)
            if late > 0:
                message = f"refused ({outcomes[0].message}) after {late} collective(s)"
                judgement.findings.append(TopKFinding(Kind.REFUSED_LATE.value, index, message))
        elif not exists:
            message = f"answered although there are no {entry.k} entries: the contract has it refuse"
            judgement.findings.append(TopKFinding(Kind.RESULT_TYPE.value, index, message))
        else:
            _judge_call(index, entry, run, judgement)
    return judgement


def _judge_call(index: int, entry: TopKCall, run: Run, judgement: TopKJudgement) -> None:
    call = entry.call
    outcomes = [rank.calls[index] for rank in run.ranks]
    values = call.values()
    columns, ids = oracle_topk(values, min(entry.k + 1, call.layout.vocab_size), call.d2t)
    right_values = np.take_along_axis(values, columns, axis=1)
    answers = np.stack([outcome.tokens for outcome in outcomes if outcome.tokens is not None])

    def found(kind: str, message: str, rows: np.ndarray | None = None, place: int = 0) -> None:
        listed = () if rows is None else tuple(int(row) for row in rows)
        judgement.findings.append(TopKFinding(kind, index, message, listed, place))

    for rank, outcome in enumerate(outcomes):
        if outcome.reference is not None:
            wrong = _wrong(outcome.reference, ids[:, : entry.k], right_values[:, : entry.k], call.dtype).any(axis=1)
            if wrong.any():
                row = int(np.flatnonzero(wrong)[0])
                answer = f"{outcome.reference[0, row].tolist()}, NumPy {ids[row, : entry.k].tolist()}"
                found(Kind.REFERENCE.value, f"rank {rank}: full gather gives {answer}", np.flatnonzero(wrong))
                break
    for rank, outcome in enumerate(outcomes):
        if outcome.modified is not None:
            row, column = outcome.modified
            found(
                Kind.INPUT_MODIFIED.value, f"rank {rank}: row {row}, local column {column} was changed", np.array([row])
            )
        elif outcome.table_modified:
            found(Kind.INPUT_MODIFIED.value, f"rank {rank}: the table was changed")
        if outcome.overwritten is not None:
            rows = np.flatnonzero((outcome.overwritten != answers[rank]).any(axis=(0, 2)))
            found(Kind.RESULT_OVERWRITTEN.value, f"rank {rank}: row {rows[0]} changed after later calls", rows)
    if len({outcome.issued for outcome in outcomes}) > 1:
        counts = ", ".join(f"rank {rank}: {outcome.issued}" for rank, outcome in enumerate(outcomes))
        found(Kind.COLLECTIVE_MISMATCH.value, f"collectives issued: {counts}")
    differing = (answers != answers[0]).any(axis=(0, 1, 3))
    if differing.any():
        row = int(np.flatnonzero(differing)[0])
        told = "; ".join(f"rank {rank}: {answers[rank, 0, row].tolist()}" for rank in range(len(answers)))
        found(Kind.RANK_DISAGREEMENT.value, f"row {row}: {told}", np.flatnonzero(differing))
    wrong = _wrong(answers[0], ids[:, : entry.k], right_values[:, : entry.k], call.dtype)
    by_kind: dict[str, list[tuple[int, int]]] = {}
    for row in np.flatnonzero(wrong.any(axis=1) & ~differing)[:64]:
        place = int(np.flatnonzero(wrong[row])[0])
        by_kind.setdefault(_kind(entry, values[row], answers[0][:, row], place), []).append((int(row), place))
    for kind, places in by_kind.items():
        row, place = places[0]
        message = f"row {row}, entry {place}: id {answers[0, 0, row, place]} in place of {ids[row, place]}"
        found(kind, message, np.array([listed for listed, _ in places]), place)
    judgement.calls += 1
    judgement.rows += call.batch
    equal = right_values[:, 1:] == right_values[:, :-1]
    judgement.tied_rows += int((equal | np.isnan(right_values[:, 1:])).any(axis=1).sum())
    judgement.nan_rows += int(np.isnan(values).any(axis=1).sum())


def decoded(answer: np.ndarray, dtype: str) -> np.ndarray:
    """float64 ``(batch, k)`` values of an int64 ``(2, batch, k)`` answer."""
    return bits.decode(answer[1].astype(bits.STORAGE[dtype]), dtype)


def _wrong(answer: np.ndarray, ids: np.ndarray, values: np.ndarray, dtype: str) -> np.ndarray:
    """bool ``(batch, k)``: another id, or another value; NaNs are one value, and so are the zeros."""
    got = decoded(answer, dtype)
    return np.asarray((answer[0] != ids) | ~((got == values) | (np.isnan(got) & np.isnan(values))))


def _kind(entry: TopKCall, row: np.ndarray, answer: np.ndarray, place: int) -> str:
    """What is wrong at one entry, from the row's float64 values and the answer ``(2, k)`` alone."""
    call = entry.call
    ids = np.arange(len(row)) if call.d2t is None else np.arange(len(row)) + call.d2t
    token, value = int(answer[0, place]), decoded(answer[:, None], call.dtype)[0, place]
    holders = np.flatnonzero(ids == token)
    if not len(holders):
        return "id-out-of-range"
    if (answer[0, :place] == token).any():
        return "repeated-id"
    logit = row[holders[0]]
    if not (logit == value or (np.isnan(logit) and np.isnan(value))):
        return "value-mismatch"
    if np.isnan(row).any():
        return "nan-rule"
    columns, _ = oracle_topk(row[None], entry.k, call.d2t)
    return "wrong-tie" if row[columns[0, place]] == logit else "wrong-entry"
