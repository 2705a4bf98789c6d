"""What a property of live engines is given: ``check_engine``, one engine at one tp_size, on fresh ranks.

A run over many options meets the same divergence again and again. Each is cut down once, and the property goes on;
`EngineChecker.conclude` then raises what is new, so that one report lists every distinct divergence once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pytest

from refimpl.engine_case import EngineCase
from refimpl.engines import EngineFacts
from refimpl.head_check import HeadTally
from refimpl.ranks.engine_runtime import BothAnswers, ask, both
from refimpl.ranks.head_runtime import OWN
from refimpl.ranks.outcome import Run
from refimpl.session import FAILURES, Checker, Session
from refimpl.verdict.engine_judge import NEITHER, judge_engine
from refimpl.verdict.engine_reduce import EngineReducer
from refimpl.verdict.judge import Finding, Judgement, describe
from refimpl.verdict.kinds import Kind
from refimpl.verdict.reduce import Counterexample

# A case takes milliseconds; one that takes this long is run again with the full limit before it counts.
_LOOKING_SECONDS = 3.0
_CHARACTERS = 160


@dataclass
class Found:
    """One distinct divergence, and on how many cases it was met."""

    counterexample: Counterexample
    met: int = 0
    rows: int = 0

    @property
    def needs(self) -> tuple[str, frozenset[str]]:
        """What was observed, and what outside the supported use it takes."""
        return _parts(self.counterexample.identity)

    def count(self, finding: Finding) -> None:
        self.met += 1
        self.rows += max(1, len(finding.rows))


def _parts(identity: str) -> tuple[str, frozenset[str]]:
    observed, _, needs = identity.rpartition("/")
    return observed, frozenset(needs.split("+"))


def _within(one: tuple[str, frozenset[str]], other: tuple[str, frozenset[str]]) -> bool:
    """Whether the same was observed and takes no more than the other."""
    return one[0] == other[0] and one[1] <= other[1]


@dataclass
class EngineChecker:
    """``explore(case)`` compares both answers and keeps what differs; ``conclude()`` raises it.

    ``known``: identity to reason, of the adopter's file of known divergences.
    """

    checker: Checker
    session: Session
    facts: EngineFacts
    name: str
    known: dict[str, str] = field(default_factory=dict)
    found: dict[str, Found] = field(default_factory=dict)
    explored: int = 0
    subject: str = OWN  # what the summary's line of this property is about
    witnesses: list[tuple[Counterexample, str]] = field(default_factory=list)

    @property
    def tp_size(self) -> int:
        return self.checker.tp_size

    @property
    def tally(self) -> HeadTally:
        return self.session.heads.setdefault((self.facts.title, self.subject, self.tp_size), HeadTally())

    # -- one case ----------------------------------------------------------------------------------------------

    def explore(self, case: EngineCase) -> Judgement:
        """Raises `Unknown` where the ranks could not be asked."""
        self.explored += 1
        self.session.journal.begin(case, self._note())
        limit = min(_LOOKING_SECONDS, self.session.ranks.limit)
        answers: BothAnswers = self.checker.guarded(lambda: both(self.session.ranks, case, limit=limit))
        judgement = judge_engine(case, answers)
        outcome = "holds"
        if judgement.refused is not None:
            outcome = "refused"
            self.tally.refused[self._refusal(judgement.refused)] += 1
        for finding in judgement.findings:
            self._keep(case, answers, finding)
            outcome = "fails"
        if judgement.holds and judgement.refused is None:
            self.checker.compared += judgement.tally.calls
            self.checker.rows += judgement.tally.rows
            self.checker.dtypes.add(case.options.logits_dtype)
        self.tally.hidden.add(judgement.tally)
        self.session.journal.end(case, self._note(), outcome)
        return judgement

    @staticmethod
    def _refusal(message: str) -> str:
        """Grouped for the report: what two inputs have in common where neither answer comes."""
        return re.sub(r"\d+", "N", message)[:_CHARACTERS] if message.startswith(NEITHER) else message

    def _keep(self, case: EngineCase, answers: BothAnswers, finding: Finding) -> None:
        """Cut a divergence down, unless one of its kind is known that needs no more than this case has."""
        for found in self.found.values():
            origin = found.counterexample.origin
            assert isinstance(origin, EngineCase)
            if found.counterexample.finding.identity != finding.identity or not set(origin.needs) <= set(case.needs):
                continue
            if origin.needs or self._shows_plainly(case, finding):
                found.count(finding)
                return
        # Memory that one input has spoilt shows in the next: what counts is what fresh ranks do.
        self.session.ranks.retire()
        answers = self.checker.guarded(lambda: both(self.session.ranks, case))
        again = [other for other in judge_engine(case, answers).findings if other.identity == finding.identity]
        if not again:
            self.session.note(f"{self.facts.title}: {finding.identity} was seen once and not again on fresh ranks")
            return
        reducer = EngineReducer(self.session.ranks, case, answers, again[0], self.session.reduce_seconds)
        counterexample: Counterexample = self.checker.guarded(reducer.counterexample)
        self.found.setdefault(counterexample.identity, Found(counterexample)).count(finding)

    def _shows_plainly(self, case: EngineCase, finding: Finding) -> bool:
        """Whether a top-k differs alike in the supported use, without cap and scale: then nothing else is to blame."""
        plain = case.plainly()
        if plain is None:
            return False
        answers: BothAnswers = self.checker.guarded(lambda: both(self.session.ranks, plain))
        return any(other.identity == finding.identity for other in judge_engine(plain, answers).findings)

    # -- all of them ---------------------------------------------------------------------------------------------

    def conclude(self) -> None:
        """Raise what is new; where all of it is known, the test ends as an expected failure."""
        distinct = [
            found
            for found in self.found.values()
            if not any(_within(other.needs, found.needs) for other in self.found.values() if other is not found)
        ]
        news, seen = [], set()
        for found in distinct:
            line = self._known_line(found)
            if line is None:
                news.append(found.counterexample)
                self.tally.failed[found.counterexample.identity] += found.met
            else:
                seen.add(line)
                self.tally.known[line, self.known[line]] += found.rows
                self.witnesses.append((found.counterexample, self.known[line]))
        for identity in sorted(set(self.known) - seen):
            self.session.note(
                f"known divergence not seen in {self.explored} cases, take it off the list if a longer run does not "
                f"see it either: {self.checker.property_id} {identity}"
            )
        if news:
            raise FAILURES[news[0].kind](news[0], tuple(news[1:]))
        if distinct:
            names = ", ".join(f"{found.counterexample.identity} ({found.met} cases)" for found in distinct)
            pytest.xfail(f"known: {names}")

    def _known_line(self, found: Found) -> str | None:
        """The line of the adopter's file: of this very divergence, or of one that takes a part of what it takes."""
        if found.counterexample.identity in self.known:
            return found.counterexample.identity
        return next((line for line in self.known if _within(_parts(line), found.needs)), None)

    # -- traffic -------------------------------------------------------------------------------------------------

    def traffic(self, case: EngineCase) -> tuple[int, int]:
        """Collectives of the local answer and their bytes. Raises `Unknown` where none could be seen."""
        # What an engine sets up at a first call of a shape is not the answer's traffic.
        self.checker.guarded(lambda: ask(self.session.ranks, case, "local"))
        run: Run = self.checker.guarded(lambda: ask(self.session.ranks, case, "local", count=True))
        if not run.complete:
            self.checker.unknown(f"the local reduction gave no answer to count collectives of:\n{describe(run)}")
        seen = run.ranks[0].calls[0].collectives or ()
        if not seen and self.tp_size > 1:
            self.checker.unknown("no collective was seen: what the engine sends cannot be counted")
        self.checker.compared += 1
        self.checker.rows += case.num_rows
        self.tally.hidden.rows += case.num_rows
        return len(seen), sum(size for _, size in seen)

    def not_taken(self, case: EngineCase, message: str) -> None:
        """Report that the fast path is not what it claims to be."""
        answers: BothAnswers = self.checker.guarded(lambda: both(self.session.ranks, case))
        finding = Finding(Kind.COMMUNICATION, Kind.COMMUNICATION.value, 0, message)
        reducer = EngineReducer(self.session.ranks, case, answers, finding, 0.0)
        counterexample: Counterexample = self.checker.guarded(reducer.counterexample)
        self.found.setdefault(counterexample.identity, Found(counterexample)).count(finding)

    def _note(self) -> dict[str, str]:
        return {
            "property": self.checker.property_id,
            "path": OWN,
            "head": self.facts.title,
            "backend": self.checker.backend,
        }
