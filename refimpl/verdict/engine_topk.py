"""The judge of a live engine's top-k: its reduction against a top-k of its own full logits, and both against NumPy's.

Ids and values are judged apart: an engine that scales the k values otherwise than its full logits may still name the
right ids. Where the engine refuses, breaks or is killed, `refimpl.verdict.engine_judge` decides as for the argmax.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from refimpl import bits
from refimpl.engine_case import EngineCase
from refimpl.ranks.engine_runtime import BothAnswers
from refimpl.ranks.outcome import CallOutcome, RankOutcome, Run
from refimpl.topk.oracle import oracle_topk
from refimpl.verdict.judge import Finding, Judgement, Tally
from refimpl.verdict.kinds import Kind

# What an answer's values travel as, whatever the engine's dtype: all of them are exact in it.
VALUES = "float32"
_CLASSIFIED_ROWS = 64
_STEP = 2.0**-23


def judge_topk(case: EngineCase, answers: BothAnswers) -> Judgement:
    """Of two answers that both came: int64 ``(2, rows, k)``, ids and the patterns of float32 values."""
    judgement = Judgement()
    full, local = _stacked(answers.full), _stacked(answers.local)
    rows = case.num_rows

    def found(kind: Kind, message: str, listed: np.ndarray | list[int]) -> None:
        judgement.findings.append(Finding(kind, kind.value, 0, message, tuple(int(row) for row in listed)))

    right_ids, logits, values = _right(case, answers, full[0])
    full_wrong = (full != full[0]).any(axis=(0, 1, 3)) | (full[0, 0] != right_ids).any(axis=1)
    full_wrong |= ~_same(case, _values(full[0]), _of_ids(right_ids, values), logits).all(axis=1)
    if full_wrong.any():
        row = int(np.flatnonzero(full_wrong)[0])
        words = f"row {row}: the top-k of the engine's full logits is {_pairs(full[0], row)}"
        found(Kind.FULL_PATH, f"{words}, of its head's logits {right_ids[row].tolist()}", np.flatnonzero(full_wrong))
    differing = (local != local[0]).any(axis=(0, 1, 3))
    if differing.any():
        row = int(np.flatnonzero(differing)[0])
        told = "; ".join(f"rank {rank}: {_pairs(local[rank], row)}" for rank in range(len(local)))
        found(Kind.RANK_DISAGREEMENT, f"row {row}: {told}", np.flatnonzero(differing))
    by_kind: dict[Kind, list[tuple[int, int]]] = {}
    for row in np.flatnonzero((local[0, 0] != right_ids).any(axis=1) & ~differing)[:_CLASSIFIED_ROWS]:
        place = int(np.flatnonzero(local[0, 0, row] != right_ids[row])[0])
        kind = _kind_of_id(local[0, 0, row], place, int(right_ids[row, place]), logits[row])
        by_kind.setdefault(kind, []).append((int(row), place))
    for kind, places in by_kind.items():
        row, place = places[0]
        message = f"row {row}, entry {place}: id {local[0, 0, row, place]} in place of {right_ids[row, place]}"
        found(kind, message, [listed for listed, _ in places])
    own = _of_ids(local[0, 0], values)
    wrong = ~_same(case, _values(local[0]), own, logits) & _valid(local[0, 0], logits)
    listed = np.flatnonzero(wrong.any(axis=1) & ~differing)
    if len(listed):
        row = int(listed[0])
        place = int(np.flatnonzero(wrong[row])[0])
        given, logit = _values(local[0])[row, place], own[row, place]
        found(
            Kind.VALUE_MISMATCH,
            f"row {row}, entry {place}: id {local[0, 0, row, place]} comes with {given:.9g}, its own is {logit:.9g}",
            listed,
        )
    ordered = np.sort(np.where(np.isnan(logits), np.inf, logits), axis=1)[:, ::-1][:, : _k(case) + 1]
    judgement.tally.add(
        Tally(
            calls=1,
            rows=rows,
            tied_rows=int((ordered[:, 1:] == ordered[:, :-1]).any(axis=1).sum()),
            nan_rows=int(np.isnan(logits).any(axis=1).sum()),
        )
    )
    return judgement


def merged_topk(answers: BothAnswers) -> Run:
    """Both answers as one outcome a rank, for the report."""
    ranks = []
    for full, local in zip(answers.full.ranks, answers.local.ranks, strict=True):
        call: CallOutcome = replace(local.calls[0], reference=full.calls[0].tokens)
        ranks.append(RankOutcome((call,)))
    return Run(tuple(ranks), answers.local.limit)


def _k(case: EngineCase) -> int:
    assert case.options.k is not None
    return case.options.k


def _stacked(run: Run) -> np.ndarray:
    """int64 ``(ranks, 2, rows, k)``."""
    return np.stack([rank.calls[0].tokens for rank in run.ranks if rank.calls[0].tokens is not None])


def _values(answer: np.ndarray) -> np.ndarray:
    """float64 ``(rows, k)`` of an answer ``(2, rows, k)``."""
    return bits.decode(answer[1].astype(bits.STORAGE[VALUES]), VALUES)


def _right(case: EngineCase, answers: BothAnswers, full: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """NumPy's ids ``(rows, k)``; the logits ``(rows, vocab_size)`` they are of; and what each id's value is to be, its
    logit or its log probability. Where the engine's logits are not known, all of them as far as the full answer tells.
    """
    if answers.logits is None:
        width = max(case.options.num_embeddings, case.options.processor_vocab_size or 0)
        values = np.full((case.num_rows, width), -np.inf)
        rows, places = np.nonzero(_valid(full[0], values))
        values[rows, full[0][rows, places]] = _values(full)[rows, places]
        return full[0], values, values
    logits = bits.decode(answers.logits, case.options.logits_dtype)
    _, ids = oracle_topk(logits, _k(case))
    return ids, logits, _log_probabilities(logits) if case.options.log_probs else logits


def _log_probabilities(logits: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        top = logits.max(axis=1, keepdims=True)
        shift = np.where(np.isfinite(top), top, 0.0)
        return np.asarray(logits - (shift + np.log(np.exp(logits - shift).sum(axis=1, keepdims=True))))


def _valid(ids: np.ndarray, logits: np.ndarray) -> np.ndarray:
    return np.asarray((ids >= 0) & (ids < logits.shape[1]))


def _of_ids(ids: np.ndarray, values: np.ndarray) -> np.ndarray:
    """NaN for an id that is none."""
    valid = _valid(ids, values)
    return np.where(valid, np.take_along_axis(values, np.where(valid, ids, 0), axis=1), np.nan)


def _same(case: EngineCase, got: np.ndarray, right: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Values bit for bit, but for the sign of a zero and the payload of a NaN. A log probability is rounded on the way,
    by an order of summation that is each engine's own: it may be off by what float32 sums of so many terms may be."""
    same = (got == right) | (np.isnan(got) & np.isnan(right))
    if case.options.log_probs:
        finite = np.where(np.isfinite(logits), np.abs(logits), 0.0).max(axis=1, keepdims=True, initial=0.0)
        with np.errstate(invalid="ignore"):
            same |= np.abs(got - right) <= _STEP * (logits.shape[1] + 8 + 4 * finite)
    return np.asarray(same)


def _kind_of_id(ids: np.ndarray, place: int, right: int, row: np.ndarray) -> Kind:
    """What is wrong with one id, from the row's float64 logits and the answer's ids alone."""
    token = int(ids[place])
    if not 0 <= token < len(row):
        return Kind.ID_OUT_OF_RANGE
    if not 0 <= right < len(row):
        return Kind.WRONG_ENTRY
    if (ids[:place] == token).any():
        return Kind.REPEATED_ID
    if np.isnan(row).any():
        return Kind.NAN_RULE
    return Kind.WRONG_TIE if row[token] == row[right] else Kind.WRONG_ENTRY


def _pairs(answer: np.ndarray, row: int) -> str:
    ids, values = answer[0, row].tolist(), _values(answer)[row].tolist()
    shown = [f"{token}: {value:g}" for token, value in zip(ids[:6], values, strict=False)]
    return ", ".join(shown) + (" ..." if len(ids) > 6 else "")
