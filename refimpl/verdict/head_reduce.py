"""From a difference between a head's two answers to the smallest hidden state that shows it, and to its cause.

For a path under test a failing row is first lowered to given logits: if the path is wrong on those, the judge and the
reducer of given logits say why. What is left has other logits. Of an engine that answers for itself the suite sees only
tokens, so it asks which variant of the head (no scale, no cap, step 0) gives exactly those that were observed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from refimpl import bits
from refimpl.case import Call, Case
from refimpl.head_case import HeadCase
from refimpl.ranks.head_runtime import HeadRanks
from refimpl.ranks.outcome import Run
from refimpl.verdict.head_judge import judge_head
from refimpl.verdict.judge import Finding, classify
from refimpl.verdict.kinds import Kind
from refimpl.verdict.reduce import Counterexample

_TRIED_COLUMNS = 8
_HALVINGS = 24
_CLASSIFIED_ROWS = 16
# Of several kinds in one batch the first says most.
_TELLING = (Kind.ID_OUT_OF_RANGE, Kind.WRONG_TARGET, Kind.WRONG_MAXIMUM, Kind.WRONG_TIE)
_TABLE_MISTAKES = ("the table is never applied", "the table is applied twice", "offsets are returned as target ids")


@dataclass(frozen=True)
class Cause:
    """What a difference is called; ``why``: one line where the suite recognises it."""

    kind: Kind
    why: str | None = None
    rows: tuple[int, ...] = ()  # those that show it, where not all do


class HeadReducer:
    """One failing case of one head, on its ranks."""

    def __init__(self, ranks: HeadRanks, case: HeadCase, run: Run, budget_seconds: float) -> None:
        self._ranks = ranks
        self._facts = ranks.facts
        self._deadline = time.monotonic() + budget_seconds
        self.case, self.run = case, run
        self.tries = 0

    def counterexample(self, finding: Finding) -> Counterexample:
        """Named by its cause on the whole batch, then cut down as long as the cause stays."""
        cause = self.cause(finding)
        if cause.rows:
            finding = replace(finding, rows=cause.rows)
        whole = self.case, self.run, finding
        self._cut_down(finding)
        smaller = self._finding(self.run, finding)
        if smaller is None or (self.case is not whole[0] and self._cause(*self._now(smaller)).kind is not cause.kind):
            self.case, self.run, smaller = whole
        rows = list(range(self.case.num_rows))
        shown, run, words = self.case, self.run, self._words(self.case, smaller)
        if self.case.num_rows > _CLASSIFIED_ROWS and smaller.rows:
            rows = list(smaller.rows[:_CLASSIFIED_ROWS])
            smaller = Finding(
                smaller.kind, smaller.identity, 0, smaller.message, tuple(range(len(rows))), smaller.ranks
            )
            run = _sliced(self.run, rows)
        given = self._given(rows)
        kind = cause.kind
        return Counterexample(
            kind=kind,
            identity=kind.value,
            case=given,
            tie_rule="target_id",
            run=run,
            finding=Finding(kind, kind.value, 0, smaller.message, smaller.rows, smaller.ranks),
            tries=self.tries,
            notes=(words,),
            why=cause.why,
            obligation="O0" if kind is Kind.OTHER_LOGITS else None,
            origin=shown,
        )

    def _given(self, rows: list[int]) -> Case:
        """The reference's logits, or zeros where the head made none: then the report shows no logits either."""
        if self.run.complete:
            return self._ranks.given(self.case, rows)
        dtype = self._facts.logits_dtype
        return Case(
            (Call(self.case.layout, dtype, np.zeros((len(rows), self._facts.num_logits), bits.STORAGE[dtype])),)
        )

    def cause(self, finding: Finding) -> Cause:
        """What the difference is called, on the case as it is now."""
        return self._cause(self.case, self.run, finding)

    def _now(self, finding: Finding) -> tuple[HeadCase, Run, Finding]:
        return self.case, self.run, finding

    # -- the cause ---------------------------------------------------------------------------------------

    def _cause(self, case: HeadCase, run: Run, finding: Finding) -> Cause:
        if finding.kind is not Kind.OTHER_LOGITS or run.ranks[0].calls[0].logits_differ is not None:
            return Cause(finding.kind)
        outcome = run.ranks[0].calls[0]
        assert outcome.tokens is not None
        if not self._facts.has_weights:
            return Cause(Kind.OTHER_LOGITS)
        recognised = self._recognised(case, outcome.tokens)
        if recognised is not None:
            return recognised
        rows = list(finding.rows[:_CLASSIFIED_ROWS])
        given = self._ranks.given(case, rows).calls[0]
        kinds = [classify(given, place, int(outcome.tokens[row])) for place, row in enumerate(rows)]
        kind = next(kind for kind in (*_TELLING, *kinds) if kind in kinds)
        return Cause(kind, rows=tuple(row for row, shown in zip(rows, kinds, strict=True) if shown is kind))

    def _recognised(self, case: HeadCase, observed: np.ndarray) -> Cause | None:
        """The variant whose tokens are those of every row, ties by target id or by draft id."""
        answers = self._ranks.variants(case)
        d2t = self._facts.d2t
        right = answers.pop("")
        for name, (tokens, draft_ids) in answers.items():
            mapped = draft_ids if d2t is None else draft_ids + d2t[draft_ids]
            if np.array_equal(observed, tokens) or np.array_equal(observed, mapped):
                return Cause(Kind.OTHER_LOGITS, name)
        if d2t is None:
            return None
        draft_ids = right[1]
        mistakes = (draft_ids, draft_ids + 2 * d2t[draft_ids], d2t[draft_ids])
        for name, tokens in zip(_TABLE_MISTAKES, mistakes, strict=True):
            if np.array_equal(observed, tokens):
                return Cause(Kind.WRONG_TARGET, name)
        return None

    # -- smaller -----------------------------------------------------------------------------------------

    def _finding(self, run: Run, wanted: Finding) -> Finding | None:
        findings = judge_head(self.case, run, self._facts.d2t).findings
        return next((f for f in findings if f.kind is wanted.kind), None)

    def _accept(self, case: HeadCase, wanted: Finding) -> bool:
        if time.monotonic() > self._deadline:
            return False
        self.tries += 1
        run = self._ranks.run(case)
        findings = judge_head(case, run, self._facts.d2t).findings
        if not any(f.identity == wanted.identity for f in findings):
            return False
        self.case, self.run = case, run
        return True

    def _cut_down(self, finding: Finding) -> None:
        if self.case.num_rows > 1:
            rows = list(finding.rows[:4]) or [0]
            if not any(self._accept(self.case.rows([row]), finding) for row in rows):
                half = self.case.num_rows // 2
                while half and self._accept(self.case.rows(slice(0, half)), finding):
                    half //= 2
                return
        row = self.case.hidden_states[0]
        one = int(bits.encode(np.array(1.0), self.case.dtype))
        size = np.abs(bits.decode(row, self.case.dtype))
        for column in np.argsort(-np.nan_to_num(size, posinf=0.0))[:_TRIED_COLUMNS]:
            simple = np.zeros_like(row)
            simple[column] = one
            if np.array_equal(simple, row) or self._accept(self.case.with_values(simple[None]), finding):
                return
        step, tries = len(row) // 2, 0
        while step and tries < _HALVINGS:
            for start in range(0, len(row), step):
                simpler = self.case.hidden_states[0].copy()
                simpler[start : start + step] = 0
                if tries < _HALVINGS and not np.array_equal(simpler, self.case.hidden_states[0]):
                    tries += 1
                    self._accept(self.case.with_values(simpler[None]), finding)
            step //= 2

    def _words(self, case: HeadCase, finding: Finding) -> str:
        """The hidden state in a line."""
        row = case.hidden_states[finding.rows[0] if finding.rows and case.num_rows > 1 else 0]
        filled = np.flatnonzero(row)
        step = f", spec_step_idx {case.spec_step_idx}" if self._facts.steps > 1 else ""
        if not len(filled):
            return f"hidden state: all zeros{step}"
        few = ", ".join(f"[{column}] = {bits.text(int(row[column]), case.dtype)}" for column in filled[:3])
        rest = "all else 0" if len(filled) <= 3 else f"and {len(filled) - 3} more"
        return f"hidden state of {case.hidden_states.shape[1]} values: {few}, {rest}{step}"


def _sliced(run: Run, rows: list[int]) -> Run:
    """The outcomes of some rows of a batch."""

    def part(array: np.ndarray | None) -> np.ndarray | None:
        return None if array is None else array[rows]

    ranks = []
    for rank in run.ranks:
        calls = tuple(
            replace(c, reference=part(c.reference), tokens=part(c.tokens), ties=part(c.ties), truth=part(c.truth))
            for c in rank.calls
        )
        ranks.append(replace(rank, calls=calls))
    return replace(run, ranks=tuple(ranks))
