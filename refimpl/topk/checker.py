"""What a top-k property holds a case against: run it on the ranks, judge it, cut a failure down."""

from __future__ import annotations

from refimpl.ranks.generations import PathUnusable, RanksUnavailable
from refimpl.ranks.outcome import Run
from refimpl.session import Session, Unknown
from refimpl.topk.case import TopKCase, run
from refimpl.topk.judge import TopKFinding, TopKJudgement, judge
from refimpl.topk.reduce import TopKCounterexample, reduce_failure
from refimpl.topk.report import render, write_case
from refimpl.verdict.judge import Tally, describe
from refimpl.verdict.kinds import Kind
from refimpl.verdict.report import shown

_SHORT_LIMIT = 0.5


class TopKFailure(AssertionError):
    """A top-k property does not hold; the message is the report."""

    def __init__(self, counterexample: TopKCounterexample, report: str) -> None:
        super().__init__(report)
        self.counterexample = counterexample

    @property
    def kind(self) -> str:
        return self.counterexample.finding.kind


class TopKChecker:
    """``check_topk(case)``. One per test, on fresh ranks."""

    def __init__(self, session: Session, path: str, tp_size: int, property_id: str) -> None:
        self._session = session
        self._ranks = session.ranks
        self._failed: dict[str, TopKFailure] = {}
        self._limit: float | None = None
        self.path = path
        self.tp_size = tp_size
        self.property_id = property_id
        self._ranks.retire()

    def __call__(self, case: TopKCase) -> TopKJudgement:
        """Raises TopKFailure with the smallest case found, or Unknown."""
        if case.digest in self._failed:
            raise self._failed[case.digest]  # Hypothesis shows a failure by running it again
        outcome = self.run(case)
        judgement = judge(case, outcome)
        tally = self._session.tally(self.path, self.tp_size)
        tally.cases += 1
        if judgement.refused is not None:
            tally.refused += 1
            tally.refusals[
                "k beyond the vocabulary" if judgement.refused.startswith("k is ") else judgement.refused
            ] += 1
        if judgement.holds:
            numbers = Tally(
                calls=judgement.calls, rows=judgement.rows, tied_rows=judgement.tied_rows, nan_rows=judgement.nan_rows
            )
            tally.rows.add(numbers)
            self._session.journal.end(case, self._note(), "holds")
            return judgement
        self._failed[case.digest] = failure = self._failure(case, judgement.findings[0], outcome)
        tally.kinds[failure.kind] += 1
        self._session.journal.end(case, self._note(), "fails", kinds=[failure.kind])
        raise failure

    def run(self, case: TopKCase, *, count: bool = False) -> Run:
        """What the ranks do with a case, unjudged. ``count``: their collectives are counted. Raises Unknown."""
        self._session.journal.begin(case, self._note())
        try:
            outcome = run(self._ranks, case, self.path, count=count, limit=self._limit)
        except (RanksUnavailable, PathUnusable, OSError) as error:
            raise Unknown(str(error)) from error
        if count and not outcome.complete:
            raise Unknown(f"the case held, but not when its collectives were counted:\n{describe(outcome)}")
        return outcome

    def fail(self, kind: Kind, message: str, case: TopKCase, outcome: Run) -> None:
        """Report a failure by a rule of the property's own; its case is kept as it is."""
        self._session.tally(self.path, self.tp_size).kinds[kind.value] += 1
        raise self._reported(TopKCounterexample(case, TopKFinding(kind.value, 0, message), outcome))

    def _failure(self, case: TopKCase, finding: TopKFinding, outcome: Run) -> TopKFailure:
        first = TopKCounterexample(case, finding, outcome)
        if finding.kind == Kind.HANG.value:
            self._limit = _SHORT_LIMIT
        try:
            smallest = reduce_failure(
                self._ranks, self.path, first, budget_seconds=self._session.reduce_seconds, limit=self._limit
            )
        except (RanksUnavailable, PathUnusable, OSError):
            smallest = first  # what was seen stays a failure, whatever happened on the way to a smaller one
        return self._reported(smallest)

    def _reported(self, counterexample: TopKCounterexample) -> TopKFailure:
        backend = self._ranks.backend.name
        where = {"property_id": self.property_id, "path": self.path, "backend": backend}
        file = write_case(counterexample, self._session.journal.cases, **where)
        text = render(counterexample, **where, replay_command=f"argmax-parity replay {shown(file)}")
        return TopKFailure(counterexample, text)

    def _note(self) -> dict[str, str]:
        return {"property": self.property_id, "path": self.path, "backend": self._ranks.backend.name}
