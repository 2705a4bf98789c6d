"""A head's drafting loop: run on the ranks, judged, and where it fails reported as a loop of its own to replay."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from refimpl import bits
from refimpl.case import Call, Case
from refimpl.draft_case import DraftCase, Loops
from refimpl.head_case import HeadCase
from refimpl.ranks.head_runtime import HeadRanks
from refimpl.ranks.outcome import Run
from refimpl.session import FAILURES, Checker, Session
from refimpl.verdict.draft_judge import judge_draft, one_row
from refimpl.verdict.judge import Finding, Judgement
from refimpl.verdict.kinds import Kind
from refimpl.verdict.reduce import Counterexample

if TYPE_CHECKING:
    from refimpl.head_check import HeadTally


@dataclass(frozen=True, eq=False)
class DraftChecker:
    """``run(case)``, then ``conclude(case, run, judgement)``; in between a property may ask what a step alone gives."""

    checker: Checker
    session: Session
    ranks: HeadRanks
    tally: HeadTally
    note: dict[str, str]

    def run(self, case: DraftCase) -> tuple[Run, Judgement]:
        """What the ranks do with a loop, and what is wrong with it. Raises `Unknown` where they could not be asked."""
        self.session.journal.begin(case, self.note)
        run, judgement = self._once(case)
        if any(finding.kind is Kind.HANG for finding in judgement.findings):
            return self._once(case)  # on a busy machine a wait may be just long; a hang comes again
        return run, judgement

    def _once(self, case: DraftCase) -> tuple[Run, Judgement]:
        run: Run = self.checker.guarded(lambda: self.ranks.draft(case))
        return run, judge_draft(case, run)

    def conclude(self, case: DraftCase, run: Run, judgement: Judgement) -> None:
        """Count a loop, or raise a `Failure` with the smallest one found that fails alike."""
        if judgement.findings:
            failing, failed, finding, tries = self._smaller(case, run, judgement.findings[0])
            self.tally.failed[finding.identity] += 1
            self.session.journal.end(case, self.note, "fails", kinds=[finding.identity])
            raise FAILURES[finding.kind](self._counterexample(failing, failed, finding, tries))
        if judgement.refused is not None:
            self.tally.refused[judgement.refused] += 1
            self.checker.refused = judgement.refused
        self.checker.compared += judgement.tally.calls
        loops = Loops.of(run)
        # As of weights that are not finite: both loops agree then, whatever they see.
        self.checker.rows += 0 if loops is not None and loops.shows_nothing else judgement.tally.rows
        self.tally.drafted += judgement.tally.rows
        self.session.journal.end(case, self.note, "refused" if judgement.refused is not None else "holds")

    def _smaller(self, case: DraftCase, run: Run, finding: Finding) -> tuple[DraftCase, Run, Finding, int]:
        """The failing sequence alone, else all of them, up to the step that fails; and how many loops were tried."""
        if finding.kind is Kind.HANG:  # each try takes the full limit, and fewer sequences say no more
            return case, run, finding, 0
        sequence = case.sequences[finding.rows[0] if finding.rows else 0]
        tried = [replace(case, sequences=some, steps=finding.call + 1) for some in ((sequence,), case.sequences)]
        for number, smaller in enumerate(tried):
            self.session.ranks.retire()  # earlier loops may have left something behind
            again, judgement = self.run(smaller)
            for other in judgement.findings:
                if other.identity == finding.identity:
                    return smaller, again, other, number + 1
        return case, run, finding, len(tried)

    def _counterexample(self, case: DraftCase, run: Run, finding: Finding, tries: int) -> Counterexample:
        facts, loops = self.ranks.facts, Loops.of(run)
        zeros = np.zeros((1, facts.num_logits), bits.STORAGE[facts.logits_dtype])  # where no row is in question
        given = Case((Call(case.layout, facts.logits_dtype, zeros),))
        if loops is not None and finding.rows:
            # Up to here all loops fed back the same tokens, so every rank had the same hidden states.
            row, step = finding.rows[0], finding.call
            states = HeadCase(facts.ref, case.layout, facts.dtype, loops.full[0].states[step], step)
            given = self.checker.guarded(lambda: self.ranks.given(states, [row]))
            run = one_row(run, step, row)
        notes = [
            f"drafting loop of {len(case.sequences)} sequence(s) and {case.steps} step(s) from 0 on, seed {case.seed}"
        ]
        if finding.rows or not run.complete:
            notes.append(finding.message.splitlines()[0])
        return Counterexample(
            kind=finding.kind,
            identity=finding.identity,
            case=given,
            tie_rule="target_id",
            run=run,
            finding=replace(finding, call=0, rows=(0,) if finding.rows else ()),
            tries=tries,
            notes=tuple(notes),
            origin=case,
        )
