"""One run of the suite: the ranks, what was compared, what was found; and the `check` each property is given."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from refimpl import loading
from refimpl.case import Case
from refimpl.ranks.generations import PathUnusable, RanksUnavailable, Spec
from refimpl.ranks.journal import Journal
from refimpl.ranks.outcome import Run
from refimpl.ranks.runtime import Ranks
from refimpl.verdict import expected
from refimpl.verdict.judge import Finding, Judgement, Tally, came_through, describe, expected_tokens, judge
from refimpl.verdict.kinds import Kind
from refimpl.verdict.obligations import Evidence, Ledger, Status
from refimpl.verdict.reduce import Counterexample, reduce_failure

if TYPE_CHECKING:
    from refimpl.head_check import HeadTally

# One passing case in so many is run a second time and must give the same answer.
_REPEAT_EVERY = 24
_REDUCED_PER_CASE = 3
NOT_REDUCED = "not reduced"  # how the note begins where the reducer itself failed
_SHORT_LIMIT = 0.3
# Cases before a failure that may have led to it. Wide ones are not kept: they cost memory, and the reducer's time.
_REMEMBERED = 48
_REMEMBERED_VALUES = 1 << 18
_SECONDS_PER_VALUE = 2e-7


class Failure(AssertionError):
    """A property does not hold. One subclass a kind: Hypothesis tells failures apart by their class."""

    kind: Kind

    def __init__(self, counterexample: Counterexample, others: tuple[Counterexample, ...] = ()) -> None:
        super().__init__(f"{self.kind.value}: {counterexample.finding.message}")
        self.counterexamples = (counterexample, *others)


def _class_name(kind: Kind) -> str:
    return "".join(word.capitalize() for word in kind.value.split("-"))


FAILURES: dict[Kind, type[Failure]] = {kind: type(_class_name(kind), (Failure,), {"kind": kind}) for kind in Kind}


class Unknown(Exception):
    """A property could be neither shown nor refuted: red, and no statement about the path."""


@dataclass
class PathTally:
    """Numbers of one path at one tp_size, for the summary; all of them add up over processes."""

    cases: int = 0
    refused: int = 0
    repeated: int = 0
    rows: Tally = field(default_factory=Tally)
    kinds: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    set_aside: Counter[str] = field(default_factory=Counter)  # rows of expected divergences


class Session:
    """What the checks of one driver share."""

    def __init__(self, ranks: Ranks, journal: Journal, reduce_seconds: float = 20.0) -> None:
        self.ranks = ranks
        self.journal = journal
        self.reduce_seconds = reduce_seconds
        self.tallies: dict[tuple[str, int], PathTally] = {}
        self.notes: list[str] = []
        self.expected = expected.shipped()  # an adopter's file adds to it
        self.ledger = Ledger()
        self.heads: dict[tuple[str, str, int], HeadTally] = {}  # by head, path and tp_size
        self.shown: set[str] = set()  # cases of known tokens that reference and NumPy have agreed with
        self.failed: dict[tuple[str, str, str], Failure] = {}
        self.confirmed_hangs: set[str] = set()

    def tally(self, path: str, tp_size: int) -> PathTally:
        return self.tallies.setdefault((path, tp_size), PathTally())

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def summary(self) -> dict[str, Any]:
        """Plain values, so that a pytest-xdist worker can send them."""
        return {
            "notes": [*self.notes, *dict.fromkeys(self.ranks.complaints)],
            "expected": [(line.path, line.identity, line.reason) for line in self.expected],
            "evidence": self.ledger.to_value(),
            "generations": self.ranks.generations_started,
            "heads": [
                {"head": head, "path": path, "tp_size": tp_size, **tally.plain()}
                for (head, path, tp_size), tally in sorted(self.heads.items())
            ],
            "tallies": [
                {
                    "path": path,
                    "tp_size": tp_size,
                    "cases": tally.cases,
                    "refused": tally.refused,
                    "repeated": tally.repeated,
                    "rows": vars(tally.rows),
                    "kinds": dict(tally.kinds),
                    "refusals": dict(tally.refusals),
                    "set_aside": dict(tally.set_aside),
                }
                for (path, tp_size), tally in sorted(self.tallies.items())
            ],
        }


class Checker:
    """What a property holds a case against: ``check(case)``. One per test, on fresh ranks."""

    def __init__(self, session: Session, path: str, tp_size: int, property_id: str) -> None:
        self._session = session
        self._ranks = session.ranks
        self._hang_seen = False
        self._earlier: deque[Case] = deque(maxlen=_REMEMBERED)
        self.path = path
        self.tp_size = tp_size
        self.property_id = property_id
        self.head: str | None = None
        self.compared = 0
        self.refused: str | None = None
        self.rows = 0  # of cases that held
        self.set_aside: Counter[str] = Counter()  # rows, by the line that foresaw their divergence
        self.dtypes: set[str] = set()
        self.proofs: list[Evidence] = []
        self.expected = tuple(line for line in session.expected if line.path == path)
        self._started = time.monotonic()
        self._proved_rows = 0
        self._ranks.retire()  # state that one test left in a path must not reach the next

    @property
    def backend(self) -> str:
        return self._ranks.backend.name

    @property
    def tie_break(self) -> str | None:
        """The path's claim about ties under a table: target_id, draft_id or None."""
        claim = self._facts()["tie_break"]
        return None if claim is None else str(claim)

    def _facts(self) -> dict[str, Any]:
        """Of the generation that the cases run on."""
        spec = Spec(loading.qualified(self.path), self.tp_size)
        facts: dict[str, Any] = self.guarded(lambda: self._ranks.facts(spec))
        return facts

    def source_digest(self) -> str:
        """sha256 of the file the ranks loaded the path from (or the path's name), and torch's version."""
        facts = self._facts()
        source = facts.get("source") or {}
        return f"{source.get('sha256') or self.path}, torch {facts['torch']}"

    def __call__(self, case: Case, tie_rule: str = "target_id") -> Judgement:
        """Run a case and judge it. Raises a `Failure` with minimal cases, or `Unknown`."""
        if self._session.failed:  # a digest takes as long as the verdict on a wide case
            known = self._session.failed.get((self.path, case.digest, tie_rule))
            if known is not None:
                raise known  # Hypothesis shows a failure by running it again
        run = self.run(case)
        judgement = self._judge(case, run, tie_rule)
        tally = self._session.tally(self.path, self.tp_size)
        if judgement.holds and judgement.refused is None and (tally.cases + 1) % _REPEAT_EVERY == 0:
            run = self._repeat(case, run, judgement, tally, tie_rule)
        return self._conclude(case, run, judgement, tie_rule)

    def known(
        self, case: Case, tokens: Sequence[np.ndarray], *, label: str | None, tie_rule: str = "target_id"
    ) -> Judgement:
        """Run a case whose right tokens are known, int64 ``(batch,)`` a call, and compare: the quick way to a verdict.

        ``label`` names the case among all that have known tokens. The first time in a session the full gather runs
        beside the path and NumPy gives its opinion: both must give these tokens (under ``tie_rule`` draft_id NumPy
        alone, since the full gather follows the other rule). After that, or without a label, the path runs alone. What
        does not come through as it should is judged, cut down and reported like any other failure.

        Raises a `Failure`, or `Unknown` where the tokens given are contradicted by NumPy.
        """
        shown = label is None or label in self._session.shown
        if not shown:
            self._agree_with_numpy(case, tokens, tie_rule)
        run = self.run(case, reference=not shown and tie_rule == "target_id")
        if not came_through(run, case, tokens):
            aside = self.set_aside.total()
            judgement = self._judge(case, run, tie_rule)
            if judgement.holds and judgement.refused is None and self.set_aside.total() == aside:
                self.unknown(f"{label}: the judge finds nothing wrong with an answer that is not the one constructed")
            if not judgement.holds:
                case, run, judgement = self._one_call(case, run, judgement, tie_rule)
            return self._conclude(case, run, judgement, tie_rule)
        if label is not None:
            self._session.shown.add(label)
        tally = Tally(calls=len(case.calls), rows=case.num_rows)
        return self._conclude(case, run, Judgement(tally=tally), tie_rule)

    def _one_call(self, case: Case, run: Run, judgement: Judgement, tie_rule: str) -> tuple[Case, Run, Judgement]:
        """The failing call by itself, where it fails alike on fresh ranks: there is less to cut down."""
        finding = judgement.findings[0]
        if len(case.calls) == 1:
            return case, run, judgement
        alone = Case((case.calls[finding.call],), case.bystanders)
        self._ranks.retire()
        run_alone = self.run(alone)
        judged = self._judge(alone, run_alone, tie_rule)
        if finding.identity in {found.identity for found in judged.findings}:
            self._earlier.clear()
            return alone, run_alone, judged
        return case, run, judgement

    def _agree_with_numpy(self, case: Case, tokens: Sequence[np.ndarray], tie_rule: str) -> None:
        agreed: set[tuple[int, int]] = set()
        for call, right in zip(case.calls, tokens, strict=True):
            key = id(call.logits), id(call.d2t)
            if key not in agreed and not np.array_equal(expected_tokens(call, tie_rule), right):
                self.unknown("the tokens constructed for a case are not NumPy's")
            agreed.add(key)

    def run(
        self,
        case: Case,
        count: bool = False,
        limit: float | None = None,
        graph: bool = False,
        reference: bool = True,
    ) -> Run:
        """What the ranks do with a case, unjudged. Raises `Unknown` where they could not be asked."""
        self._session.journal.begin(case, self._note())
        if limit is None:
            limit = self._ranks.limit
            if self._hang_seen:
                values = max(call.logits.size for call in case.calls) * len(case.calls)
                limit = min(limit, _SHORT_LIMIT + _SECONDS_PER_VALUE * values)
        options = {"graph": True} if graph else {}
        run = self.guarded(
            lambda: self._ranks.run(case, self.path, limit=limit, count=count, reference=reference, **options), case
        )
        if count and not run.complete:
            self.unknown(f"the case held, but did not come through when its collectives were counted:\n{describe(run)}")
        return run

    def fail(self, kind: Kind, message: str, case: Case, run: Run) -> NoReturn:
        """Report a failure that a property found by a rule of its own; its case is kept as it is."""
        finding = Finding(kind, kind.value, 0, message)
        counterexample = Counterexample(
            kind=kind, identity=kind.value, case=case, tie_rule="target_id", run=run, finding=finding
        )
        self._session.tally(self.path, self.tp_size).kinds[kind.value] += 1
        self._end(case, "fails", kinds=[kind.value])
        raise FAILURES[kind](counterexample)

    def unknown(self, message: str) -> NoReturn:
        raise Unknown(message)

    def note(self, text: str) -> None:
        """An observation for the summary at the end of the run."""
        self._session.note(f"{self.path}: {text}")

    def take_refusal(self) -> str | None:
        """What the path refused with so far, if it did; from here on it counts as not having refused."""
        refused, self.refused = self.refused, None
        return refused

    def proved(self, obligation: str, part: str, scope: str, refused: str | None = None) -> None:
        """Every case of a scope has held: those checked since the last proof, or since the test began.

        ``part``: one of `refimpl.verdict.obligations.PARTS`. ``scope``: what is exhaustive, in words. Where the path
        refused any of it, what is left is evidence of tests: it refused since `take_refusal`, or ``refused`` says so.
        The ledger takes it once the test has passed.
        """
        refused = refused or self.refused
        now = time.monotonic()
        self.proofs.append(
            self.evidence(
                obligation,
                Status.PROVED if refused is None else Status.TESTED,
                part=part,
                scope=scope if refused is None else f"{scope}; in part refused: {refused}",
                count=self.rows - self._proved_rows,
                seconds=round(now - self._started, 3),
            )
        )
        self._started, self._proved_rows = now, self.rows

    def evidence(self, obligation: str, status: Status, **more: Any) -> Evidence:
        """Evidence about this path and head at this tp_size, from this test."""
        return Evidence(
            path=self.path,
            head=self.head,
            obligation=obligation,
            status=status,
            tp_size=self.tp_size,
            source=self.property_id,
            dtypes=tuple(sorted(self.dtypes)),
            **more,
        )

    # -- inside -------------------------------------------------------------------------------------

    def _conclude(self, case: Case, run: Run, judgement: Judgement, tie_rule: str) -> Judgement:
        """Count what was found, and raise what does not hold, cut down."""
        tally = self._session.tally(self.path, self.tp_size)
        tally.cases += 1
        if judgement.refused is not None:
            self.refused = judgement.refused
            tally.refused += 1
            tally.refusals[judgement.refused] += 1
        if judgement.holds:
            # Run before another one in one go, a refused case would end that run.
            if judgement.refused is None and sum(call.logits.size for call in case.calls) <= _REMEMBERED_VALUES:
                self._earlier.append(case)
            tally.rows.add(judgement.tally)
            self.compared += judgement.tally.calls
            self.rows += judgement.tally.rows
            self.dtypes |= {call.dtype for call in case.calls}
            self._end(case, "refused" if judgement.refused is not None else "holds")
            return judgement
        failure = self._reduce(*self._unforeseen(case, run, judgement, tie_rule), tie_rule)
        if failure is None:
            # A wait that ran out at the short limit, and was none at the full one.
            self._hang_seen = False
            return self(case, tie_rule)
        self._session.failed[self.path, case.digest, tie_rule] = failure
        for counterexample in failure.counterexamples:
            tally.kinds[counterexample.identity] += 1
        self._end(case, "fails", kinds=[c.identity for c in failure.counterexamples])
        raise failure

    def _note(self) -> dict[str, str]:
        return {"property": self.property_id, "path": self.path, "backend": self.backend}

    def _end(self, case: Case, outcome: str, **more: Any) -> None:
        self._session.journal.end(case, self._note(), outcome, **more)

    def guarded(self, ask: Any, case: Case | None = None) -> Any:
        try:
            return ask()
        except (RanksUnavailable, PathUnusable, OSError) as error:
            if case is not None:
                self._end(case, "unknown", reason=str(error))
            raise Unknown(str(error)) from error

    def _judge(self, case: Case, run: Run, tie_rule: str) -> Judgement:
        try:
            # Where some are set aside, every wrong row must be looked at.
            judgement = judge(case, run, tie_rule, case.num_rows) if self.expected else judge(case, run, tie_rule)
            if judgement.findings and self.expected:
                self._set_aside(case, run, judgement)
            return judgement
        except Exception as error:
            self._end(case, "unknown", reason=f"judge: {error!r}")
            raise Unknown(f"the judge itself failed on case {case.digest}: {error!r}") from error

    def _set_aside(self, case: Case, run: Run, judgement: Judgement) -> None:
        """Take out what the path is expected to answer otherwise; the test then ends as an expected failure."""
        judgement.findings, met = expected.set_aside(self.expected, case, judgement.findings)
        self.set_aside.update(met)
        self._session.tally(self.path, self.tp_size).set_aside.update(met)
        if not judgement.findings and not run.complete:
            judgement.refused = f"expected divergence {', '.join(met)}: no answer to compare"

    def _unforeseen(self, case: Case, run: Run, judgement: Judgement, tie_rule: str) -> tuple[Case, Run, list[Finding]]:
        """What is to be cut down: without the rows that were foreseen to differ, if it fails without them as well."""
        if self.expected:
            rest = expected.without_foreseen(self.expected, case)
            if 0 < rest.num_rows < case.num_rows:
                again = self.run(rest)
                findings = self._judge(rest, again, tie_rule).findings
                if findings:
                    return rest, again, findings
        return case, run, judgement.findings

    def _repeat(self, case: Case, run: Run, judgement: Judgement, tally: PathTally, tie_rule: str) -> Run:
        """Run a case that held once more; the second run, which is what the judgement is of from here on."""
        again = self.run(case)
        tally.repeated += 1
        judgement.findings.extend(self._judge(case, again, tie_rule).findings)
        # The second may have ended earlier.
        for index, (first, second) in enumerate(zip(run.ranks[0].calls, again.ranks[0].calls, strict=False)):
            if first.tokens is None or second.tokens is None:
                continue
            rows = np.flatnonzero(first.tokens != second.tokens)
            if len(rows):
                message = f"row {rows[0]}: {first.tokens[rows[0]]}, run again {second.tokens[rows[0]]}"
                kind = Kind.NONDETERMINISTIC
                judgement.findings.append(Finding(kind, kind.value, index, message, tuple(int(r) for r in rows)))
        return again

    def _reduce(self, case: Case, run: Run, findings: list[Finding], tie_rule: str) -> Failure | None:
        found: dict[str, Counterexample] = {}
        for finding in findings[:_REDUCED_PER_CASE]:
            if finding.kind is Kind.HANG:
                self._hang_seen = True
            counterexample = self._smallest(case, run, finding, tie_rule)
            if counterexample.confirmed:
                found.setdefault(counterexample.identity, counterexample)
        if not found:
            return None
        first, *others = found.values()
        return FAILURES[first.kind](first, tuple(others))

    def _smallest(self, case: Case, run: Run, finding: Finding, tie_rule: str) -> Counterexample:
        try:
            return self.guarded(
                lambda: reduce_failure(
                    self._ranks,
                    self.path,
                    case,
                    finding,
                    tie_rule=tie_rule,
                    budget_seconds=self._session.reduce_seconds,
                    confirmed_hangs=self._session.confirmed_hangs,
                    observed=run if run.limit >= self._ranks.limit else None,
                    earlier=tuple(self._earlier),
                ),
                case,
            )
        except Unknown:
            raise
        except Exception as error:
            # What was seen on the ranks stays a failure, whatever happened to us on the way to a smaller one.
            return Counterexample(
                kind=finding.kind,
                identity=finding.identity,
                case=case,
                tie_rule=tie_rule,
                run=run,
                finding=finding,
                notes=(f"{NOT_REDUCED}: the reducer failed ({type(error).__name__}: {error})",),
            )
