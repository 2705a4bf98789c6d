"""What a property of heads is given: ``check_head``, one head with one path at one tp_size, on fresh ranks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from refimpl import bits
from refimpl.case import Call, Case
from refimpl.draft_check import DraftChecker
from refimpl.head_case import HeadCase
from refimpl.ranks.head_runtime import OWN, HeadFacts, HeadRanks
from refimpl.ranks.outcome import RankOutcome, Run
from refimpl.session import FAILURES, Checker, Failure, Session
from refimpl.verdict.head_judge import judge_head
from refimpl.verdict.head_reduce import Cause, HeadReducer
from refimpl.verdict.judge import Finding, Judgement, Tally, judge
from refimpl.verdict.kinds import Kind
from refimpl.verdict.obligations import Status
from refimpl.verdict.reduce import Counterexample
from refimpl.verdict.report import write_case
from refimpl.vocab.d2t import TableReport, targets
from refimpl.vocab.layouts import Layout
from refimpl.vocab.tie_rate import TieRate, from_tokens

# From so many rows on it is told that none of them shows anything.
_MANY_ROWS = 50
# Rows of a failing batch that are given to a path at a time, as wide as the vocabulary.
_LOWERED_ROWS = 8


@dataclass
class HeadTally:
    """Numbers of one head with one path at one tp_size; all of them add up over processes."""

    starts_from_hidden_states: bool = True
    hidden: Tally = field(default_factory=Tally)  # rows from hidden states
    given: Tally = field(default_factory=Tally)  # rows of given logits
    drafted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    known: Counter[tuple[str, str]] = field(default_factory=Counter)  # kind and reason: rows
    conditional: Counter[tuple[str, str]] = field(default_factory=Counter)  # the same, of ties that the table decides
    failed: Counter[str] = field(default_factory=Counter)

    def plain(self) -> dict[str, Any]:
        return {
            "starts_from_hidden_states": self.starts_from_hidden_states,
            "hidden": vars(self.hidden),
            "given": vars(self.given),
            "drafted": self.drafted,
            "refused": dict(self.refused),
            "known": [[kind, reason, rows] for (kind, reason), rows in self.known.items()],
            "conditional": [[kind, reason, rows] for (kind, reason), rows in self.conditional.items()],
            "failed": dict(self.failed),
        }


def _shows_nothing(tally: Tally) -> bool:
    """Where all rows tie at their top or hold a NaN, both paths agree whatever they see."""
    return tally.rows in (tally.tied_rows, tally.nan_rows)


class HeadChecker:
    """``check_head(case)`` runs a case from hidden states and judges it; ``check_head.given(case)`` one of logits.

    A divergence that the head states as known is counted and does not fail; any other raises a `Failure`.
    """

    def __init__(self, checker: Checker, session: Session, facts: HeadFacts) -> None:
        self._checker = checker
        self._session = session
        self.facts = facts
        self.path = checker.path
        self.tp_size = checker.tp_size
        self._ranks = HeadRanks(session.ranks, self.path, facts, self.tp_size)
        self._rows: dict[tuple[int, bytes], tuple[np.ndarray, np.ndarray]] = {}
        self._seen: set[str] = set()
        if facts.figures["masks"]:
            under = "without a table they are rows like others"
            if facts.d2t is not None:
                under = "under its table the full gather gives filler id 0 and a mapped path the target of draft 0"
            self.note(f"it can give rows that are all -inf; {under}")
        self.known_divergences: list[tuple[Counterexample, str]] = []  # one witness a reason

    @property
    def tally(self) -> HeadTally:
        key = (self.facts.name, self.path, self.tp_size)
        return self._session.heads.setdefault(key, HeadTally(self.facts.starts_from_hidden_states))

    @property
    def no_layout(self) -> str | None:
        """Why the head has no layout at this tp_size, where it has none."""
        layout = self.facts.layouts[self.tp_size]
        return layout if isinstance(layout, str) else None

    @property
    def layout(self) -> Layout:
        return self.facts.layout(self.tp_size)

    def known(self, kind: Kind, *, by_draft_id: bool = False) -> str | None:
        """The reason for which a divergence of this kind is no news, if there is one.

        The head states it. That a sound table which does not rise decides ties need not be stated: it is the
        condition of the verdict, see `refimpl.verdict.verdict`.
        """
        for known in self.facts.figures["known"]:
            if kind.value in known["kinds"] and known["ties_by_draft_id"] == by_draft_id:
                return str(known["reason"])
        report = self.table_report
        if by_draft_id and kind is Kind.WRONG_TIE and report is not None and not report.errors and report.inversions:
            return f"the table does not rise strictly ({report.inversions} inverted pairs): see its condition"
        return None

    @property
    def any_known_seen(self) -> bool:
        return bool(self._seen)

    @property
    def unseen_known(self) -> list[str]:
        """Known divergences that this test has not seen, as far as this path has them."""
        stated = [k for k in self.facts.figures["known"] if not k["ties_by_draft_id"] or self.maps_draft_ids]
        return [str(k["reason"]) for k in stated if k["reason"] not in self._seen]

    @property
    def maps_draft_ids(self) -> bool | None:
        """Whether the path claims to break ties by draft id; None where it claims nothing."""
        claim = self._checker.tie_break
        return None if claim is None else claim == "draft_id"

    @property
    def table_report(self) -> TableReport | None:
        return self.facts.table_report

    def table(self) -> None:
        """Raises `Failure` for a table that is no injective map into the target vocabulary."""
        facts, kind = self.facts, Kind.BAD_TABLE
        if facts.bad_table is None:
            return
        # No row is compared under it: what is kept is whose table it is, and a replay reads it again.
        states = np.zeros((1, facts.input_size), bits.STORAGE[facts.dtype])
        origin = HeadCase(facts.ref, self.layout, facts.dtype, states)
        logits = np.zeros((1, facts.num_logits), bits.STORAGE[facts.logits_dtype])
        counterexample = Counterexample(
            kind=kind,
            identity=kind.value,
            case=Case((Call(self.layout, facts.logits_dtype, logits),)),
            tie_rule="target_id",
            run=Run((RankOutcome(),) * self.tp_size, self._session.ranks.limit),
            finding=Finding(kind, kind.value, 0, facts.bad_table),
            origin=origin,
        )
        self.tally.failed[kind.value] += 1
        self._session.journal.line("bad table", head=facts.name, message=facts.bad_table)
        raise FAILURES[kind](counterexample)

    @cached_property
    def breaks_ties_by_draft_id(self) -> Run | None:
        """Under a table that does not rise: the run that shows the path's answer to its smallest tie to be the lowest
        draft id's target, not the lowest target; None where it is the lowest target. Raises `Failure` for any other."""
        case = self.smallest_tie()
        run = self._checker.run(case)
        if judge(case, run).holds or not judge(case, run, "draft_id").holds:
            self._checker(case)
            return None
        return run

    @property
    def refusal(self) -> str | None:
        """What the path said when it refused a case of this test."""
        return self._checker.refused

    def smallest_tie(self) -> Case:
        """The tie of the table's inverted pair with the smallest ids, every other column less."""
        assert self.table_report is not None and self.table_report.lowest_inverted_pair is not None
        one, less = bits.encode(np.array([1.0, 0.0]), self.facts.logits_dtype)
        logits = np.full((1, self.facts.num_logits), less, bits.STORAGE[self.facts.logits_dtype])
        logits[0, list(self.table_report.lowest_inverted_pair)] = one
        padding = (bits.INFINITY[self.facts.logits_dtype],)
        return Case((Call(self.layout, self.facts.logits_dtype, logits, padding, self.facts.d2t),))

    def tie_rate(self, case: HeadCase) -> TieRate:
        """How many rows of a case from hidden states the table's order decides, by both rules on the head's logits."""
        assert self.facts.d2t is not None
        both = self._checker.guarded(lambda: self._ranks.variants(case, only=("",)))[""]
        return from_tokens(both[0], both[1], targets(self.facts.d2t))

    def condition(self, text: str, case: Case, run: Run) -> None:
        """Rows on which this head and path differ, all others being right: a conditional verdict, with its witness."""
        finding = Finding(Kind.WRONG_TIE, Kind.WRONG_TIE.value, 0, text, (0,))
        counterexample = Counterexample(
            kind=finding.kind, identity=finding.identity, case=case, tie_rule="target_id", run=run, finding=finding
        )
        file = write_case(
            counterexample,
            self._session.journal.cases,
            property_id=self._checker.property_id,
            path=self.path,
            backend=self._checker.backend,
        )
        compared = Tally(calls=1, rows=case.num_rows, tied_rows=case.num_rows)
        self.tally.given.add(compared)
        self._session.tally(self.path, self.tp_size).rows.add(compared)
        reason = self.known(Kind.WRONG_TIE, by_draft_id=True)
        if reason is not None:
            self._note_conditional(reason, case.num_rows)
        self.evidence("O5", Status.REFUTED, condition=text, kind=finding.identity, witness=str(file))

    def evidence(self, obligation: str, status: Status, **more: Any) -> None:
        """Add to the ledger what this test has shown by a rule of its own."""
        self._session.ledger.add(self._checker.evidence(obligation, status, **more))

    def _note_conditional(self, reason: str, rows: int, witness: Counterexample | None = None) -> None:
        """Rows that the order of the table decides: under it the verdict is conditional, not refuted."""
        self.tally.conditional[Kind.WRONG_TIE.value, reason] += rows
        self._note_seen(reason, witness)

    def _note_known(self, kind: Kind, reason: str, rows: int, witness: Counterexample | None = None) -> None:
        self.tally.known[kind.value, reason] += rows
        self._note_seen(reason, witness)

    def _note_seen(self, reason: str, witness: Counterexample | None) -> None:
        if reason not in self._seen and witness is not None:
            self.known_divergences.append((witness, reason))
        self._seen.add(reason)

    def rows(self, ids: np.ndarray, spec_step_idx: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the head's projection and the gain before it, asked once for the same rows."""
        key = (spec_step_idx, ids.tobytes())
        if key not in self._rows:
            self._rows[key] = self._checker.guarded(lambda: self._ranks.rows(ids, spec_step_idx))
        return self._rows[key]

    # -- from hidden states ------------------------------------------------------------------------------

    def run(self, case: HeadCase) -> Run:
        """What the ranks do with a case, unjudged. Raises `Unknown` where they could not be asked."""
        self._session.journal.begin(case, self._note())
        run: Run = self._checker.guarded(lambda: self._ranks.run(case))
        return run

    def __call__(self, case: HeadCase) -> Judgement:
        """Raises a `Failure` with a minimal case, or `Unknown`."""
        key = (f"{self.facts.name} {self.path}", case.digest, "")
        if key in self._session.failed:
            raise self._session.failed[key]  # Hypothesis shows a failure by running it again
        run = self.run(case)
        judgement = judge_head(case, run, self.facts.d2t)
        if judgement.refused is not None:
            self.tally.refused[judgement.refused] += 1
            self._checker.refused = judgement.refused
        counterexamples = [self._named(case, run, finding) for finding in judgement.findings]
        news = [c for c in counterexamples if c is not None]
        if news:
            for counterexample in news:
                self.tally.failed[counterexample.identity] += 1
            self._session.journal.end(case, self._note(), "fails", kinds=[c.identity for c in news])
            self._session.failed[key] = FAILURES[news[0].kind](news[0], tuple(news[1:]))
            raise self._session.failed[key]
        self._checker.compared += judgement.tally.calls
        self._checker.rows += 0 if _shows_nothing(judgement.tally) else judgement.tally.rows
        self._checker.dtypes.add(self.facts.logits_dtype)
        self.tally.hidden.add(judgement.tally)
        if self.tally.hidden.rows >= _MANY_ROWS and _shows_nothing(self.tally.hidden):
            self._checker.note(
                f"every row from hidden states of head {self.facts.name} ties or holds NaN, which shows nothing: "
                "are its weights finite and not all alike?"
            )
        self._session.journal.end(case, self._note(), "refused" if judgement.refused is not None else "holds")
        return judgement

    def _named(self, case: HeadCase, run: Run, finding: Finding) -> Counterexample | None:
        """The cause of a finding; None where it is known."""
        if finding.kind is Kind.OTHER_LOGITS and self.path != OWN and run.ranks[0].calls[0].logits_differ is None:
            lowered = self._lowered(case, finding)
            if lowered is not None:
                return lowered[0]
        reducer = HeadReducer(self._ranks, case, run, self._session.reduce_seconds)
        if self._seen:  # the first of its kind is cut down to a witness, the others are counted
            cause: Cause = self._checker.guarded(lambda: reducer.cause(finding))
            reason = self.known(cause.kind)
            if reason in self._seen:
                self._note_known(cause.kind, reason, max(1, len(finding.rows)))
                return None
        counterexample: Counterexample = self._checker.guarded(lambda: reducer.counterexample(finding))
        reason = self.known(counterexample.kind)
        if reason is None:
            return counterexample
        self._note_known(counterexample.kind, reason, max(1, len(finding.rows)), counterexample)
        return None

    def _lowered(self, case: HeadCase, finding: Finding) -> tuple[Counterexample | None] | None:
        """The path on the reference's logits of the failing rows: what is wrong there, or None where nothing is.

        Every row is looked at, a few at a time: behind ties that the table decides another mistake may stand.
        """
        decided = 0
        for begin in range(0, len(finding.rows), _LOWERED_ROWS):
            rows = list(finding.rows[begin : begin + _LOWERED_ROWS])
            given: Case = self._checker.guarded(partial(self._ranks.given, case, rows))
            try:
                if self._by_draft_id(given, rows=len(rows)):
                    decided += len(rows)
                    continue
                self._checker(given)
            except Failure as failure:
                # Beside ties that the table may decide, any other kind says more.
                found = sorted(failure.counterexamples, key=lambda one: one.kind is Kind.WRONG_TIE)
                return (found[0],)
            if not decided:
                return None  # right on given logits: then it is the logits that are others
        return (None,) if decided == len(finding.rows) else None

    # -- given logits ------------------------------------------------------------------------------------

    def given(self, case: Case) -> Judgement:
        """A case of given logits, in this head's layout and with its table. Raises `Failure` and `Unknown`."""
        judgement = self._checker(case, tie_rule="draft_id" if self._by_draft_id(case) else "target_id")
        if judgement.refused is not None:
            self.tally.refused[judgement.refused] += 1
        self.tally.given.add(judgement.tally)
        return judgement

    def _by_draft_id(self, case: Case, rows: int | None = None) -> bool:
        """Whether a path answers a tie otherwise than the full gather because it maps draft ids, and that is known."""
        reason = self.known(Kind.WRONG_TIE, by_draft_id=True)
        if reason is None or self.facts.has_rising_table:
            return False
        run = self._checker.run(case)
        wrong = judge(case, run)
        # Several NaNs are a tie as well: what matters is that the other rule explains every row.
        if wrong.holds or not run.complete or not judge(case, run, "draft_id").holds:
            return False
        count = sum(len(finding.rows) for finding in wrong.findings) if rows is None else rows
        finding = next(f for f in wrong.findings if f.rows)
        row = finding.rows[0]
        witness = Counterexample(
            kind=finding.kind,
            identity=finding.identity,
            case=replace(case, calls=(case.calls[finding.call].rows([row]),)),
            tie_rule="target_id",
            run=run,
            finding=replace(finding, call=0, rows=(0,)),
            obligation="O5",
        )
        self._note_conditional(reason, count, witness)
        return True

    # -- drafting ----------------------------------------------------------------------------------------

    @cached_property
    def drafting(self) -> DraftChecker:
        """The drafting loop of this head and path."""
        return DraftChecker(self._checker, self._session, self._ranks, self.tally, self._note())

    def note(self, text: str) -> None:
        self._session.note(f"head {self.facts.name}: {text}")

    def _note(self) -> dict[str, str]:
        return {
            "property": self._checker.property_id,
            "path": self.path,
            "head": self.facts.name,
            "backend": self._checker.backend,
        }
