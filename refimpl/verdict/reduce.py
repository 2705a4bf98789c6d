"""Cuts a failing case down on the real ranks, then names its kind by a few further questions to fresh ones.

Hypothesis runs without its shrink phase: a recipe for thousands of rows shrinks to "seed 0" at best. This reducer works
on the expanded case, which it knows the parts of: calls, rows, columns, padding, values, ranks, bystanders, table. A
smaller case is kept only if the ranks fail on it in the same way.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

import numpy as np

from refimpl import bits
from refimpl.case import Call, Case
from refimpl.draft_case import DraftCase
from refimpl.engine_case import EngineCase
from refimpl.head_case import HeadCase
from refimpl.oracle import tied_set
from refimpl.ranks.generations import PathUnusable
from refimpl.ranks.outcome import Run, Stuck
from refimpl.ranks.runtime import Ranks
from refimpl.verdict.explain import Observation, explanation
from refimpl.verdict.judge import Finding, Judgement, describe, expected, judge
from refimpl.verdict.kinds import Kind
from refimpl.vocab import d2t as tables
from refimpl.vocab.layouts import Layout, layout_from_sizes

Test = Callable[[np.ndarray], bool]

# Wrong tokens on which the ranks agree: the kinds that say what is wrong with a row.
TOKEN_KINDS = frozenset(
    {
        Kind.WRONG_TIE,
        Kind.WRONG_MAXIMUM,
        Kind.NAN_RULE,
        Kind.ALL_NEG_INF_ROW,
        Kind.PADDING_RETURNED,
        Kind.ID_OUT_OF_RANGE,
        Kind.WRONG_TARGET,
    }
)

_SHORT_SECONDS = 0.3  # for a case that may hang like those before it
_PATIENT_SECONDS = 2.0  # for a case that ought to come through
_SECONDS_PER_VALUE = 2e-7
_SECONDS_PER_CALL = 0.02
_NCCL_START_SECONDS = 3.0  # a fresh NCCL group connects in its first collective
_TRANSPORT = "transport"
_ROUNDS = 3
_SINGLE_REMOVALS = 24  # up to so many items each is tried on its own
_REPEATS = 8
_MANY_REPEATS = 64
_REPEATED_VALUES = 1 << 22
_GENERATIONS = 3
_PROBED_ROWS = 64
_AFTER_REPEATS_SECONDS = 5.0
# One cause shows now as this, now as that: the first of these that was seen names it.
_PRECEDENCE = (Kind.DIED, Kind.RAISED_ON_SOME_RANKS, Kind.RAISED, Kind.HANG)


@dataclass(frozen=True, eq=False)
class Counterexample:
    """A minimal failing case, what the ranks did with it and what is known of it.

    ``identity`` is stable under replay. ``answers``: of a nondeterministic path, what it gave at different times.
    ``origin``: the hidden states or the drafting loop, where the failure is seen from them; ``case`` then holds the
    logits for the report.
    ``confirmed``: False where the failure was a wait that did not last to the full limit; then it is no failure.
    """

    kind: Kind
    identity: str
    case: Case
    tie_rule: str
    run: Run
    finding: Finding
    tries: int = 0
    notes: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    why: str | None = None
    obligation: str | None = None
    confirmed: bool = True
    origin: HeadCase | DraftCase | EngineCase | None = None


def reduce_failure(
    ranks: Ranks,
    path: str,
    case: Case,
    finding: Finding,
    *,
    tie_rule: str = "target_id",
    budget_seconds: float = 20.0,
    confirmed_hangs: set[str] | None = None,
    observed: Run | None = None,
    earlier: Sequence[Case] = (),
) -> Counterexample:
    """The smallest case found that fails like ``finding``, its kind made precise.

    ``confirmed_hangs``: where ranks were found stuck for the full limit before; a hang there is confirmed sooner, and a
    new one is added. ``observed``: the run that ``finding`` was seen in; without it a hang that does not come again is
    unconfirmed, since it may have been a short limit. ``earlier``: cases that the same ranks ran before, on which it
    may depend. The budget covers the search, not the questions after it.

    Raises RanksUnavailable, and PathUnusable if the path cannot be brought up at all.
    """
    search = _Search(ranks, path, case, finding, tie_rule, time.monotonic() + budget_seconds)
    hangs = set() if confirmed_hangs is None else confirmed_hangs
    try:
        run, judgement = search.ask(case, fresh=True)
        search.seen.append(Observation(case, run, tie_rule))
        again = search.same(case, judgement)
        if again is None:
            counterexample = _not_again(search, run, judgement, hangs, observed, earlier)
        else:
            search.run, search.finding = run, again
            _cut_down(search, budget_seconds)
            counterexample = _named(search, hangs)
        if counterexample.case.tp_size < case.tp_size:
            note = f"found at tp_size {case.tp_size}; fewer ranks fail alike"
            counterexample = replace(counterexample, notes=(*counterexample.notes, note))
        return _explained(counterexample, [*search.seen, *_more_rows(search, counterexample)])
    finally:
        ranks.retire()  # what these cases left in the path must not reach the next one


def _explained(counterexample: Counterexample, others: Sequence[Observation]) -> Counterexample:
    found = explanation(counterexample, others)
    if found is None:
        return counterexample
    return replace(counterexample, why=found.text, obligation=found.obligation)


def _more_rows(search: _Search, counterexample: Counterexample) -> list[Observation]:
    """Random rows of the minimal case's values and a few numbers: many wrong models fit one row, few fit these too."""
    if counterexample.kind not in TOKEN_KINDS and counterexample.kind is not Kind.RANK_DISAGREEMENT:
        return []
    call = counterexample.case.calls[counterexample.finding.call]
    dtype, tp_size = call.dtype, search.whole.tp_size
    rng = np.random.default_rng(0)
    few = bits.encode(np.array([-2.0, -1.0, 0.0, 1.0, 2.0]), dtype)
    palette = np.unique(np.concatenate([few, call.logits[:_REPEATS, :_REPEATS].ravel()]))
    calls = []
    for sizes, extra in (([3] * tp_size, 0), ([1 + rank % 3 for rank in range(tp_size)], 1), ([0, 5] * tp_size, 0)):
        layout = layout_from_sizes(sizes[:tp_size] if any(sizes[:tp_size]) else [4], extra)
        size = layout.vocab_size
        d2t = None if call.d2t is None else tables.frequency_table(size, 4 * size, rng)
        logits = rng.choice(palette, (_PROBED_ROWS, size))
        calls.append(Call(layout, dtype, logits, (*call.padding, 0), d2t))
    case = Case(tuple(calls), counterexample.case.bystanders)
    try:
        run, _ = search.ask(case, fresh=True)
    except PathUnusable:
        return []
    return [Observation(case, run, search.tie_rule)]


class _TimeUp(Exception):
    """The budget of the search is spent: what is smallest now stays so."""


class _Search:
    """The smallest case so far, and the ranks it is asked of."""

    def __init__(self, ranks: Ranks, path: str, case: Case, finding: Finding, tie_rule: str, deadline: float) -> None:
        self.ranks = ranks
        self.path = path
        self.whole = case
        self.case = case
        self.wanted = finding
        self.finding = finding
        self.run: Run | None = None
        self.tie_rule = tie_rule
        self.deadline = deadline
        self.fresh = False
        self.keeps_calls = False
        self.tries = 0
        self.seen: list[Observation] = []  # what the ranks did with bigger cases
        self._waits = _cause(finding.identity) == _TRANSPORT  # the failure looked for may show as a wait
        self._is_slow = False
        self._hang_seen = False
        self._rejected: set[str] = set()

    def ask(
        self, case: Case, *, fresh: bool = False, limit: float | None = None, debug: bool = False
    ) -> tuple[Run, Judgement]:
        """Run and judge a case, without any notion of what it ought to show."""
        self.tries += 1
        if fresh:
            self.ranks.retire()
        short = self._limit(case) if limit is None else limit
        run = self.ranks.run(case, self.path, limit=short, debug=debug, reference=not debug)
        if limit is None and short < self.ranks.limit and not self._waits and _any_stuck(run):
            # A path that is slow at its first call, say: what was no wait at the full limit is none at a short one.
            self._is_slow = True
            self.ranks.retire()
            run = self.ranks.run(case, self.path, limit=self.ranks.limit, debug=debug, reference=not debug)
        self._hang_seen |= self._waits and _any_stuck(run)
        return run, judge(case, run, self.tie_rule)

    def _limit(self, case: Case) -> float:
        if self._is_slow:
            return self.ranks.limit
        seconds = _SHORT_SECONDS if self._hang_seen else _PATIENT_SECONDS
        seconds += _SECONDS_PER_VALUE * sum(call.logits.size for call in case.calls)
        seconds += _SECONDS_PER_CALL * len(case.calls)
        if self.ranks.backend.device_type == "cuda":
            seconds += _NCCL_START_SECONDS
        return min(seconds, self.ranks.limit)

    def same(self, case: Case, judgement: Judgement) -> Finding | None:
        """The finding that is the failure looked for, if it is among them."""
        if self.wanted.kind is Kind.NONDETERMINISTIC:  # which no single run shows
            return judgement.findings[0] if judgement.findings else None
        cause = _cause(self.wanted.identity)
        alike = [finding for finding in judgement.findings if _cause(finding.identity) == cause]
        if not alike and self.fresh and case.num_rows > 1 and self.wanted.kind in TOKEN_KINDS:
            # State or neighbours are at work: what they make of a row is as good one way as the other.
            alike = [finding for finding in judgement.findings if finding.kind in TOKEN_KINDS]
        exact = [finding for finding in alike if finding.identity == self.finding.identity]
        return next(iter(exact or alike), None)

    def start_over(self, case: Case, run: Run | None, finding: Finding) -> None:
        """Search from this case, on fresh ranks for every try."""
        self.whole = self.case = case
        self.run, self.finding = run, finding
        self.fresh = True
        self._rejected.clear()

    def accept(self, case: Case) -> bool:
        """Make the case the smallest so far if the ranks fail on it in the same way. Raises _TimeUp."""
        if time.monotonic() > self.deadline:
            raise _TimeUp
        if case.digest in self._rejected:
            return False
        if self.fails(case, fresh=self.fresh):
            return True
        self._rejected.add(case.digest)
        return False

    def fails_again(self) -> bool:
        """Whether the smallest case fails on fresh ranks, however much time is left."""
        return self.fails(self.case)

    def fails(self, case: Case, *, fresh: bool = True) -> bool:
        try:
            run, judgement = self.ask(case, fresh=fresh)
        except PathUnusable:
            return False  # its setup() does not work at this tp_size
        finding = self.same(case, judgement)
        if finding is None:
            return False
        self.case, self.run, self.finding = case, run, finding
        return True

    # -- what to make smaller -----------------------------------------------------------------------

    def passes(self) -> bool:
        """Make every part smaller in turn. False where the case stopped failing on fresh ranks: state is at work."""
        with contextlib.suppress(_TimeUp):
            for number in range(_ROUNDS):
                before = self.case.digest
                if not self.keeps_calls:
                    self._fewer_calls()
                for positions in self._alone_and_together(lambda call: call.batch):
                    self._fewer_rows(positions)
                if number == 0 and not self.fresh and not self.fails_again():
                    return False
                for position in self._positions():
                    self._plainer_table(position)
                for positions in self._alone_and_together(lambda call: call.layout):
                    self._fewer_columns(positions)
                for positions in self._alone_and_together(lambda call: call.layout.padded_size):
                    self._less_padding(positions)
                for position in self._positions():
                    self._plainer_padding(position)
                    self._plainer_values(position)
                self._fewer_ranks()
                self._fewer_bystanders()
                if self.case.digest == before:
                    break
        return self.fresh or self.fails_again()

    def _positions(self) -> list[int]:
        """One index for each distinct call; a call that is repeated is changed everywhere at once."""
        first: dict[int, int] = {}
        for index, call in enumerate(self.case.calls):
            first.setdefault(id(call), index)
        return list(first.values())

    def _alone_and_together(self, trait: Callable[[Call], Hashable]) -> list[list[int]]:
        """Calls of one trait at once, for what a path keeps may depend on it; then every distinct call by itself."""
        alike: dict[Hashable, list[int]] = {}
        for position in self._positions():
            alike.setdefault(trait(self.case.calls[position]), []).append(position)
        return [*(group for group in alike.values() if len(group) > 1), *([position] for position in self._positions())]

    def _accept_call(self, position: int, new: Call) -> bool:
        return self._accept_calls([position], [new])

    def _accept_calls(self, positions: Sequence[int], new: Sequence[Call]) -> bool:
        changed = {id(self.case.calls[position]): call for position, call in zip(positions, new, strict=True)}
        calls = tuple(changed.get(id(call), call) for call in self.case.calls)
        return self.accept(replace(self.case, calls=calls))

    def _failing_rows(self, position: int) -> list[int]:
        shown = self.case.calls[self.finding.call] is self.case.calls[position]
        return list(self.finding.rows) if shown else []

    def _fewer_calls(self) -> None:
        calls = self.case.calls
        if len(calls) == 1:
            return
        target = self.finding.call

        def test(kept: np.ndarray) -> bool:
            return self.accept(replace(self.case, calls=tuple(calls[index] for index in kept)))

        ahead = [[target], [target - 1, target], [0, target], list(range(target + 1))]
        ahead = [kept for kept in ahead if kept[0] >= 0 and len(set(kept)) == len(kept) < len(calls)]
        _shrink(_first_that(test, ahead, len(calls)), [target], test)

    def _fewer_rows(self, positions: list[int]) -> None:
        """``positions``: calls of one batch size."""
        calls = [self.case.calls[position] for position in positions]
        batch = calls[0].batch
        if batch <= 1:
            return
        failing = next((rows[:1] for position in positions if (rows := self._failing_rows(position))), [])
        row = failing[0] if failing else 0

        def test(kept: np.ndarray) -> bool:
            return self._accept_calls(positions, [call.rows(kept) for call in calls])

        pairs = [[first, second] for first, second in ((0, row), (row - 1, row), (row, row + 1))]
        pairs = [pair for pair in pairs if 0 <= pair[0] < pair[1] < batch]
        _shrink(_first_that(test, [[row], *pairs], batch), failing, test)

    def _fewer_columns(self, positions: list[int]) -> None:
        """``positions``: calls of one layout."""
        calls = [self.case.calls[position] for position in positions]
        layout = calls[0].layout
        size = layout.vocab_size
        at_stake = [self._columns_at_stake(position) for position in positions]
        wanted, returned, tied = (list(dict.fromkeys(chain(*columns))) for columns in zip(*at_stake, strict=True))
        core = list(dict.fromkeys(wanted + returned))
        beside = [column for column in (core[0] + 1, core[0] - 1) if 0 <= column < size]
        of_each_shard = [
            next((column for column in core if start <= column < end), start)
            for start, end in layout.bounds
            if end > start
        ]
        ahead = [wanted, core, core + beside[:1], core + beside, core + tied, core + of_each_shard]
        ahead = [sorted(set(kept)) for kept in ahead]
        ahead = [kept for kept in ahead if len(kept) < size]
        # What a path keeps from call to call may depend on the padded width, so it is left alone where all else failed.
        for padded_size in (None, layout.padded_size)[: len(self.case.calls)]:
            if self.case.calls[positions[0]].layout != layout:
                break

            def test(kept: np.ndarray, padded_size: int | None = padded_size) -> bool:
                return self._accept_calls(positions, [_columns(call, kept, padded_size) for call in calls])

            _shrink(_first_that(test, ahead, size), core, test)

    def _columns_at_stake(self, position: int) -> tuple[list[int], list[int], list[int]]:
        """Of the failing rows: the columns of the right tokens, those of the returned ones, a few of the tied sets."""
        call = self.case.calls[position]
        wanted: list[int] = []
        returned: list[int] = []
        tied: list[int] = []
        for row in self._failing_rows(position)[:4]:
            one = call.rows([row])
            is_tied = tied_set(one.values())[0]
            right = _columns_of(call, int(expected(one, self.tie_rule).tokens[0]))
            wanted += [column for column in right if is_tied[column]] or [int(is_tied.argmax())]
            tied += np.flatnonzero(is_tied)[:4].tolist()
            assert self.run is not None
            for rank in self.run.ranks:
                tokens = rank.calls[self.finding.call].tokens if len(rank.calls) > self.finding.call else None
                if tokens is not None:
                    returned += _columns_of(call, int(tokens[row]))
        return wanted or [0], returned, tied

    def _less_padding(self, positions: list[int]) -> None:
        """``positions``: calls of one padded width."""
        calls = [self.case.calls[position] for position in positions]
        least = max(1, *(_widest(call.layout) for call in calls))

        def test(width: int) -> bool:
            layouts = [replace(call.layout, padded_size=width) for call in calls]
            new = [replace(call, layout=layout) for call, layout in zip(calls, layouts, strict=True)]
            return self._accept_calls(positions, new)

        width = calls[0].layout.padded_size
        if width == least or test(least) or width == least + 1 or test(least + 1):
            return
        step = width - least
        while step:
            if width - step > least + 1 and test(width - step):
                width -= step
            else:
                step //= 2

    def _plainer_padding(self, position: int) -> None:
        call = self.case.calls[position]
        if any(call.num_padding):
            for pattern in dict.fromkeys((bits.neg_inf(call.dtype), 0, *call.padding[:6])):
                if (pattern,) == call.padding or self._accept_call(position, replace(call, padding=(pattern,))):
                    break

    def _plainer_values(self, position: int) -> None:
        call = self.case.calls[position]
        if call.batch == 0:
            return
        row = (self._failing_rows(position) or [0])[0]
        self._accept_call(position, replace(call, logits=np.repeat(call.logits[[row]], call.batch, axis=0)))
        call = self.case.calls[position]
        wanted, returned, _ = self._columns_at_stake(position)
        background = np.setdiff1d(np.arange(call.layout.vocab_size), wanted + returned)
        lowest = call.logits.copy()
        lowest[:, background] = _lowest(call.logits, call.dtype)[:, None]
        self._accept_call(position, replace(call, logits=lowest))
        call = self.case.calls[position]
        for logits in _plain_forms(call.logits, call.dtype):
            if np.array_equal(logits, call.logits) or self._accept_call(position, replace(call, logits=logits)):
                break
        call = self.case.calls[position]
        if call.logits.size > _SINGLE_REMOVALS:
            return
        for cell in np.ndindex(call.logits.shape):
            call = self.case.calls[position]
            lowest_of_row = int(_lowest(call.logits[[cell[0]]], call.dtype)[0])
            for pattern in (lowest_of_row, *_rounder(int(call.logits[cell]), call.dtype)):
                logits = call.logits.copy()
                logits[cell] = pattern
                if logits[cell] == call.logits[cell] or self._accept_call(position, replace(call, logits=logits)):
                    break

    def _fewer_ranks(self) -> None:
        whole = self.case

        def test(firsts: np.ndarray) -> bool:
            if firsts[0] != 0:
                return False
            return self.accept(replace(whole, calls=_each(whole.calls, lambda call: _regroup(call, firsts.tolist()))))

        ahead = [[0], *([0, first] for first in range(1, whole.tp_size))]
        ahead = [firsts for firsts in ahead if len(firsts) < whole.tp_size]
        _shrink(_first_that(test, ahead, whole.tp_size), [0], test)

    def _fewer_bystanders(self) -> None:
        for number in range(self.case.bystanders):
            if self.accept(replace(self.case, bystanders=number)):
                return

    def _plainer_table(self, position: int) -> None:
        call = self.case.calls[position]
        if call.d2t is None or self._accept_call(position, replace(call, d2t=None)):
            return
        order = np.argsort(np.argsort(tables.targets(call.d2t), kind="stable"), kind="stable")
        for first in (0, 1, call.layout.vocab_size):
            table = tables.offsets(order + first)
            if np.array_equal(table, call.d2t) or self._accept_call(position, replace(call, d2t=table)):
                return


def _cut_down(search: _Search, budget_seconds: float) -> None:
    """Live ranks are quick; where that feigns a failure, since state is at work, every try gets fresh ones."""
    case, run, finding = search.case, search.run, search.finding
    feigned = not search.passes()
    fruitless = search.case is case and not _is_small(case) and time.monotonic() < search.deadline
    if feigned or fruitless:
        search.start_over(case, run, finding)
        search.deadline = max(search.deadline, time.monotonic() + budget_seconds)
        search.passes()


def _is_small(case: Case) -> bool:
    return len(set(case.calls)) == 1 and case.calls[0].batch <= 2 and case.calls[0].layout.vocab_size <= 8


# -- naming it ----------------------------------------------------------------------------------------


def _named(search: _Search, confirmed_hangs: set[str]) -> Counterexample:
    """The counterexample of a case that failed again, with the kind that further questions support."""
    if search.finding.kind is Kind.HANG and not _confirm_hang(search, confirmed_hangs):
        return _counterexample(search, confirmed=False)
    words = _named_mismatch(search)
    if words is not None:
        return _counterexample(search, Kind.COLLECTIVE_MISMATCH, notes=(words,))
    kind = search.finding.kind
    if kind is Kind.RANK_DISAGREEMENT:
        return _instability(search) or _counterexample(search)
    if kind in TOKEN_KINDS:
        named = _instability(search) or _dependence(search) or _padding_at_work(search) or _table_at_work(search)
        return named or _counterexample(search)
    if _cause(search.finding.identity) == _TRANSPORT and kind is not Kind.HANG:
        # Which of its endings shows first is chance: ask once more, so that the same one is named every time.
        seen = [(search.finding, search.run)]
        if search.fails_again():
            seen.append((search.finding, search.run))
        search.finding, search.run = min(seen, key=lambda pair: _PRECEDENCE.index(pair[0].kind))
        return _counterexample(search)
    return _counterexample(search)


def _counterexample(
    search: _Search,
    kind: Kind | None = None,
    identity: str | None = None,
    *,
    notes: tuple[str, ...] = (),
    answers: tuple[str, ...] = (),
    confirmed: bool = True,
) -> Counterexample:
    assert search.run is not None
    finding = search.finding
    if kind is not None:
        finding = replace(finding, kind=kind, identity=identity or kind.value)
    return Counterexample(
        kind=finding.kind,
        identity=finding.identity,
        case=search.case,
        tie_rule=search.tie_rule,
        run=search.run,
        finding=finding,
        tries=search.tries,
        notes=notes,
        answers=answers,
        confirmed=confirmed,
    )


def _confirm_hang(search: _Search, confirmed_hangs: set[str]) -> bool:
    """Whether the smallest case waits for the full limit; if not, the whole one may, and is kept as it is."""
    assert search.run is not None
    full = search.ranks.limit
    known = _stuck_at(search.run) <= confirmed_hangs
    limit = min(full, _PATIENT_SECONDS) if known else full
    if search.run.limit >= limit:
        confirmed_hangs |= _stuck_at(search.run)
        return True
    for case in dict.fromkeys((search.case, search.whole)):
        run, judgement = search.ask(case, fresh=True, limit=limit)
        finding = search.same(case, judgement)
        if finding is not None:
            search.case, search.run, search.finding = case, run, finding
            confirmed_hangs |= _stuck_at(run)
            return True
        limit = full
    return False


def _stuck_at(run: Run) -> set[str]:
    return {rank.end.where for rank in run.ranks if isinstance(rank.end, Stuck)}


def _named_mismatch(search: _Search) -> str | None:
    """What torch's own check of collectives says, where the ranks may have been at odds: its DETAIL debug level.

    The level waits in a barrier of its own before each collective, so a rank that issues none is a wait here too.
    """
    run, finding = search.run, search.finding
    assert run is not None
    suspects = {Kind.RANK_DISAGREEMENT, Kind.COLLECTIVE_MISMATCH, Kind.DIED, *TOKEN_KINDS}
    waits = [rank.end for rank in run.ranks if isinstance(rank.end, Stuck)]
    if finding.kind is Kind.HANG:
        suspected = all(wait.in_collective for wait in waits)
    else:
        suspected = finding.kind in suspects or _cause(finding.identity) == _TRANSPORT
    if search.case.tp_size == 1 or not suspected:
        return None
    try:
        detailed, _ = search.ask(search.case, fresh=True, limit=min(_PATIENT_SECONDS, search.ranks.limit), debug=True)
    except PathUnusable:
        return None
    for outcome in detailed.ranks:
        message = outcome.calls[-1].message if outcome.calls and outcome.calls[-1].status == "raised" else ""
        if "Detected mismatch between collectives" in message:
            # Torch's sentence without the fingerprints it repeats: in what the collectives differ.
            aspects = " ".join(message.partition("Collectives differ in the following aspects:")[2].split())
            aspects = aspects.replace("vs ", " vs ").replace("Tensor Tensor", "tensor") or " ".join(message.split())
            return f"torch's DETAIL level: collectives differ: {aspects}"
    return None


def _instability(search: _Search) -> Counterexample | None:
    """Whether the smallest case, repeated inside fresh generations, gives other answers now and then."""
    call, single = search.case.calls[0], len(search.case.calls) == 1
    small = call.logits.size * _REPEATS <= _REPEATED_VALUES
    case = replace(search.case, calls=(call,) * (_REPEATS if small else 2)) if single else search.case
    patterns = []
    for _ in range(_GENERATIONS if small else 2):
        run, _ = search.ask(case, fresh=True)
        pattern = _tokens(run)
        if pattern is None:
            return None  # the calls after the first do not come through: no matter of other tokens
        patterns.append(pattern)
    answers = _differing(patterns)
    if answers:
        if single and not _is_small(search.case):
            _cut_down_by_chance(search, case, search.finding)
        return _counterexample(search, Kind.NONDETERMINISTIC, answers=_as_asked(search, case, answers))
    changed = [index for index, tokens in enumerate(patterns[0]) if not np.array_equal(tokens, patterns[0][0])]
    if not single or not changed:
        return None
    enough = changed[0] + 1
    again = replace(case, calls=(call,) * enough)
    run, judgement = search.ask(again, fresh=True)
    finding = search.same(again, judgement)
    if finding is not None:
        search.case, search.run, search.finding = again, run, finding
    note = f"made {enough} times on fresh ranks, the same call always gives another answer the last time"
    return _counterexample(search, Kind.ROW_DEPENDENCE, notes=(note,))


def _cut_down_by_chance(search: _Search, repeated: Case, finding: Finding) -> None:
    """A single call of a path that decides by chance is as often right as wrong; repeated, it is hardly ever right."""
    case, run, known = search.case, search.run, search.finding
    search.start_over(repeated, None, finding)
    search.keeps_calls = True
    if not search.fails_again():
        search.case, search.run, search.finding = case, run, known
        return
    search.deadline = max(search.deadline, time.monotonic() + _AFTER_REPEATS_SECONDS)
    search.passes()


def _tokens(run: Run) -> list[np.ndarray] | None:
    """Tokens of each call by rank and row, or None where not every rank answered."""
    if not run.complete or any(call.tokens is None for rank in run.ranks for call in rank.calls):
        return None
    return [np.stack(calls) for calls in zip(*([c.tokens for c in rank.calls] for rank in run.ranks), strict=True)]


def _differing(patterns: Sequence[list[np.ndarray]]) -> tuple[str, ...]:
    """Two answers to the same row, in words, or nothing where all generations agree."""
    for other in patterns[1:]:
        for index, (one, two) in enumerate(zip(patterns[0], other, strict=True)):
            differs = np.flatnonzero((one != two).any(axis=0))
            if len(differs):
                row = int(differs[0])
                return tuple(
                    f"call {index + 1}, row {row}: "
                    + ", ".join(f"rank {rank}: {token}" for rank, token in enumerate(tokens[:, row]))
                    for tokens in (one, two)
                )
    return ()


def _as_asked(search: _Search, asked: Case, answers: tuple[str, ...]) -> tuple[str, ...]:
    """Answers to a case that was cut down since say so: their rows and ranks are not those that are shown."""
    if search.case.calls[0] is asked.calls[0]:
        return answers
    return tuple(f"before it was cut down: {answer}" for answer in answers)


def _dependence(search: _Search) -> Counterexample | None:
    """Whether the failing row is right when it is alone."""
    case, finding = search.case, search.finding
    if case.num_rows <= 1 and len(case.calls) == 1:
        return None
    row = finding.rows[0]
    alone = Case((case.calls[finding.call].rows([row]),), case.bystanders)
    _, judgement = search.ask(alone, fresh=True)
    if judgement.findings or judgement.refused is not None:
        return None
    note = f"row {row} of call {finding.call + 1} alone, on fresh ranks, is right"
    return _counterexample(search, Kind.ROW_DEPENDENCE, notes=(note,))


def _padding_at_work(search: _Search) -> Counterexample | None:
    """Whether the failing case is right once the padding holds nothing but -inf."""
    calls = _each(search.case.calls, lambda call: replace(call, padding=(bits.neg_inf(call.dtype),)))
    pairs = zip(search.case.calls, calls, strict=True)
    if not any(any(old.num_padding) and old.padding != new.padding for old, new in pairs):
        return None
    _, judgement = search.ask(replace(search.case, calls=calls), fresh=True)
    if judgement.findings or judgement.refused is not None:
        return None
    return _counterexample(search, Kind.PADDING_RETURNED, notes=("with -inf in the padding the row is right",))


def _table_at_work(search: _Search) -> Counterexample | None:
    """Whether the failing case is right without its table, and the token is no other member of the tied set."""
    assert search.run is not None
    call, row = search.case.calls[search.finding.call], search.finding.rows[0]
    tokens = search.run.ranks[0].calls[search.finding.call].tokens
    if call.d2t is None or tokens is None:
        return None
    if tokens[row] in tables.targets(call.d2t)[tied_set(call.rows([row]).values())[0]]:
        return None
    bare = replace(search.case, calls=_each(search.case.calls, lambda call: replace(call, d2t=None)))
    _, judgement = search.ask(bare, fresh=True)
    if judgement.findings or judgement.refused is not None:
        return None
    return _counterexample(search, Kind.WRONG_TARGET, notes=("without the table the row is right",))


# -- what did not come again --------------------------------------------------------------------------


def _not_again(
    search: _Search,
    run: Run,
    judgement: Judgement,
    confirmed_hangs: set[str],
    observed: Run | None,
    earlier: Sequence[Case],
) -> Counterexample:
    """On fresh ranks the whole case ended otherwise: does it fail after the earlier ones, or if it is repeated?"""
    wanted, case = search.wanted, search.case
    search.run = run
    if wanted.kind is Kind.HANG and (observed is None or observed.limit < search.ranks.limit):
        return _counterexample(search, confirmed=False)
    ends = () if observed is None else [rank.end for rank in observed.ranks]
    # An error that one rank had by chance leaves the others in the reference of the next call as well.
    may_be_late = wanted.kind is Kind.HANG or bool(judgement.findings) or judgement.refused is not None
    if may_be_late and any(isinstance(end, Stuck) and end.in_reference for end in ends):
        return _counterexample(search, confirmed=False)  # ours was late, on a busy machine; the path was not
    before = [call for other in earlier if other.tp_size == case.tp_size for call in other.calls]
    if before:
        history = replace(case, calls=(*before, *case.calls))
        after_them, judged = search.ask(history, fresh=True, limit=search.ranks.limit)
        found = search.same(history, judged)
        if found is not None:
            search.seen.append(Observation(history, after_them, search.tie_rule))
            search.start_over(history, after_them, found)
            search.passes()
            return _named(search, confirmed_hangs)
    answers: tuple[str, ...] = (f"at first: {wanted.message}", f"on fresh ranks: {_short(search, run)}")
    for call in _worth_repeating(case, wanted):
        number = max(2, min(_MANY_REPEATS, _REPEATED_VALUES // max(1, call.logits.size)))
        many = Case((call,) * number, case.bystanders)
        asked = [search.ask(many, fresh=True, limit=search.ranks.limit) for _ in range(2)]
        findings = [search.same(many, judgement) for _, judgement in asked]
        if findings == [None, None]:
            continue
        search.seen.append(Observation(many, asked[0][0], search.tie_rule))
        patterns = [pattern for run, _ in asked if (pattern := _tokens(run)) is not None]
        differing = _differing(patterns) if len(patterns) == 2 else ()
        if findings[0] is not None and findings[1] is not None and not differing:
            return _at_a_fixed_call(search, many, findings[0], confirmed_hangs)
        index = 0 if findings[0] is not None else 1
        search.case, search.run, search.finding = many, asked[index][0], findings[index] or wanted
        if not _is_small(search.case):
            _cut_down_by_chance(search, many, search.finding)
        differing = _as_asked(search, many, differing)
        return _counterexample(search, Kind.NONDETERMINISTIC, answers=differing or answers)
    if wanted.rows:
        # No form of the case shows it again; then the shortest one is the easiest to read.
        search.case = Case((case.calls[wanted.call].rows([wanted.rows[0]]),), case.bystanders)
        search.finding = replace(wanted, call=0, rows=(0,))
        search.run, _ = search.ask(search.case, fresh=True)
    note = "not seen again on fresh ranks: chance, or what had run on the same ranks before"
    return _counterexample(search, Kind.NONDETERMINISTIC, answers=answers, notes=(note,))


def _worth_repeating(case: Case, finding: Finding) -> list[Call]:
    call = case.calls[finding.call]
    alone = [call.rows([finding.rows[0]])] if finding.rows and call.batch > 1 else []
    return [*alone, call]


def _at_a_fixed_call(search: _Search, case: Case, finding: Finding, confirmed_hangs: set[str]) -> Counterexample:
    """The case, one call again and again, fails twice alike: as few repeats as it takes, then smaller."""
    low, high = 1, len(case.calls)
    search.start_over(case, None, finding)
    while low < high:
        middle = (low + high) // 2
        if search.fails(replace(case, calls=case.calls[:middle])):
            high = middle
        else:
            low = middle + 1
    search.whole = search.case
    if not search.fails_again():
        answers = (f"at first: {finding.message}", "run again on fresh ranks: no failure")
        search.run = search.run or search.ask(search.case, fresh=True)[0]
        return _counterexample(search, Kind.NONDETERMINISTIC, answers=answers)
    search.deadline = max(search.deadline, time.monotonic() + _AFTER_REPEATS_SECONDS)
    search.passes()
    if search.finding.kind is Kind.HANG and not _confirm_hang(search, confirmed_hangs):
        return _counterexample(search, confirmed=False)
    number = len(search.case.calls)
    note = f"on fresh ranks call {number} is the first to fail, always: {number - 1} calls before it are needed"
    if search.finding.kind in TOKEN_KINDS or search.finding.kind is Kind.RANK_DISAGREEMENT:
        return _counterexample(search, Kind.ROW_DEPENDENCE, notes=(note,))
    return _counterexample(search, notes=(note,))


def _short(search: _Search, run: Run) -> str:
    """What the ranks gave where the failure had been seen."""
    index, rows = search.wanted.call, search.wanted.rows
    if rows and all(len(rank.calls) > index and rank.calls[index].tokens is not None for rank in run.ranks):
        tokens = [rank.calls[index].tokens[rows[0]] for rank in run.ranks]  # type: ignore[index]
        return f"row {rows[0]}: " + ", ".join(f"rank {rank}: {token}" for rank, token in enumerate(tokens))
    return describe(run).replace("\n", "; ")


# -- parts of a case ----------------------------------------------------------------------------------


def _any_stuck(run: Run) -> bool:
    return any(isinstance(rank.end, Stuck) for rank in run.ranks)


def _cause(identity: str) -> str:
    """Ends of one cause get one name: gloo aborts one rank, closes connections of others, leaves a third waiting."""
    if identity in (f"{Kind.DIED.value}:SIGABRT", Kind.HANG.value) or identity.endswith(f":{_TRANSPORT}"):
        return _TRANSPORT
    return identity


def _first_that(test: Test, candidates: Iterable[Sequence[int]], size: int) -> np.ndarray:
    """The first candidate that passes, or all of so many items."""
    passed = next((candidate for candidate in candidates if test(np.array(candidate, np.intp))), None)
    return np.arange(size) if passed is None else np.array(passed, np.intp)


def _shrink(kept: np.ndarray, pinned: Iterable[int], test: Test) -> None:
    """Drop what ``test`` can do without: from both ends of every gap between pinned items, then items one by one.

    Halving steps from the ends of a gap find a threshold (ids from 257 on) in a logarithmic number of tries.
    ``kept``: the items left so far, in rising order.
    """
    for low, high in pairwise([-1, *sorted(set(pinned)), np.iinfo(np.intp).max]):
        for from_the_end in (False, True):
            gap = kept[(kept > low) & (kept < high)]
            step = len(gap)
            while step:
                dropped = gap[-step:] if from_the_end else gap[:step]
                rest = kept[(kept < dropped[0]) | (kept > dropped[-1])]
                if len(rest) and test(rest):
                    kept = rest
                    gap = gap[:-step] if from_the_end else gap[step:]
                    step = min(step, len(gap))
                else:
                    step //= 2
    if len(kept) <= _SINGLE_REMOVALS:
        for item in kept:
            rest = kept[kept != item]
            if len(rest) and test(rest):
                kept = rest


def _each(calls: Sequence[Call], change: Callable[[Call], Call]) -> tuple[Call, ...]:
    """Change every call; one that is repeated stays one object."""
    changed = {id(call): change(call) for call in calls}
    return tuple(changed[id(call)] for call in calls)


def _widest(layout: Layout) -> int:
    return max(end - start for start, end in layout.bounds)


def _columns(call: Call, kept: np.ndarray, padded_size: int | None) -> Call:
    """The call with some columns only: the shards shrink, the padding stays or the padded width does.

    The table keeps the targets of the columns that are left.
    """
    bounds = tuple(pairwise([0, *(int(np.searchsorted(kept, end)) for _, end in call.layout.bounds)]))
    if padded_size is None:
        padded_size = call.layout.padded_size - _widest(call.layout) + max(end - start for start, end in bounds)
    d2t = None if call.d2t is None else tables.offsets(tables.targets(call.d2t)[kept])
    return replace(call, layout=Layout(bounds, padded_size), logits=np.ascontiguousarray(call.logits[:, kept]), d2t=d2t)


def _columns_of(call: Call, token: int) -> list[int]:
    """The columns whose id a token is: one, or none for an id out of range."""
    if call.d2t is not None:
        return [int(column) for column in np.flatnonzero(tables.targets(call.d2t) == token)]
    return [token] if 0 <= token < call.layout.vocab_size else []


def _regroup(call: Call, firsts: Sequence[int]) -> Call:
    """Merge neighbouring ranks: a new one begins at each of ``firsts``, of which rank 0 is the first."""
    starts = [call.layout.bounds[rank][0] for rank in firsts]
    bounds = tuple(pairwise([*starts, call.layout.vocab_size]))
    extra = call.layout.padded_size - _widest(call.layout)
    return replace(call, layout=Layout(bounds, max(end - start for start, end in bounds) + extra))


def _lowest(logits: np.ndarray, dtype: str) -> np.ndarray:
    """Each row's least pattern, NaNs being the greatest."""
    order = np.where(bits.is_nan(logits, dtype), np.iinfo(np.int64).max, bits.ordinal(logits, dtype))
    return np.asarray(logits[np.arange(len(logits)), order.argmin(axis=1)])


def _plain_forms(logits: np.ndarray, dtype: str) -> Iterator[np.ndarray]:
    """The rows with plainer values of the same order, plainest first; each row has numbers of its own."""
    yield np.zeros_like(logits)
    has_nan = bits.is_nan(logits, dtype).any()
    has_infinity = (np.abs(bits.ordinal(logits, dtype)) == bits.INFINITY[dtype]).any()
    for nans in ("numbers", "plain", "kept") if has_nan else ("kept",):
        for infinities in (False, True) if has_infinity else (True,):
            for scale in ("from zero", "below zero", "around zero", "ulps from one"):
                rows = [_plain_row(row, dtype, nans, infinities, scale) for row in logits]
                if all(row is not None for row in rows):
                    yield np.stack(rows)  # type: ignore[arg-type]


def _plain_row(row: np.ndarray, dtype: str, nans: str, infinities: bool, scale: str) -> np.ndarray | None:
    """``infinities``: keep them. None where the dtype does not hold the numbers."""
    order = bits.ordinal(row, dtype)
    is_nan = bits.is_nan(row, dtype)
    if nans == "numbers":
        order = np.where(is_nan, np.iinfo(np.int64).max, order)
        is_nan = np.zeros_like(is_nan)
    fixed = is_nan | (infinities & (np.abs(order) == bits.INFINITY[dtype]))
    classes, numbers = np.unique(order[~fixed], return_inverse=True)
    zero = int(np.searchsorted(classes, 0))
    if scale == "below zero":
        numbers = numbers - len(classes)
    elif scale == "around zero":
        numbers = numbers - zero
    one = bits.ordinal(bits.encode(np.array([1.0]), dtype), dtype)[0]
    plain = bits.from_ordinal(one + numbers, dtype) if scale == "ulps from one" else bits.encode(numbers, dtype)
    if len(np.unique(plain)) != len(classes):
        return None
    result = row.copy()
    if scale == "around zero":  # zeros keep their signs, or what they tell apart is lost
        plain = np.where(order[~fixed] == 0, row[~fixed], plain)
    result[~fixed] = plain
    if nans == "plain":
        result[is_nan] = bits.NAN[dtype]
    return result


def _rounder(pattern: int, dtype: str) -> list[int]:
    """Numbers that are easier to read than this one; none for a small whole number."""
    stored = np.array([pattern], bits.STORAGE[dtype])
    value = float(bits.decode(stored, dtype)[0])
    if not np.isfinite(value) or (value == int(value) and abs(value) < 10 and pattern != bits.sign_bit(dtype)):
        return []
    return [int(bits.encode(np.array(number), dtype)) for number in (0.0, 1.0, -1.0, float(f"{value:.0e}"))]
