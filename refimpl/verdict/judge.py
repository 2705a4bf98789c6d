"""The judge: what the ranks did with a case, against the reference, the NumPy oracle and the contract.

It only observes. Which seeded bug or engine produced the outcomes is nothing it could know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from refimpl import bits
from refimpl.case import Call, Case
from refimpl.oracle import oracle_tokens
from refimpl.ranks.outcome import Died, RankOutcome, Run, Stuck
from refimpl.verdict.kinds import Kind

# Rows of a call are judged in blocks of this many values, which stay in the cache.
_BLOCK_VALUES = 1 << 17
_CLASSIFIED_ROWS = 256


@dataclass(frozen=True)
class Finding:
    """One failure of one case. ``identity`` names it across replays; ``rows`` are those of ``call`` that show it."""

    kind: Kind
    identity: str
    call: int
    message: str
    rows: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()


@dataclass
class Tally:
    """What was compared: every number is a count of rows but ``calls`` and ``refused_calls``."""

    calls: int = 0
    rows: int = 0
    tied_rows: int = 0
    cross_shard_ties: int = 0
    nan_rows: int = 0
    filler_rows: int = 0
    filler_differs: int = 0
    refused_calls: int = 0

    def add(self, other: Tally) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass
class Judgement:
    findings: list[Finding] = field(default_factory=list)
    refused: str | None = None
    tally: Tally = field(default_factory=Tally)

    @property
    def holds(self) -> bool:
        return not self.findings


@dataclass
class Expected:
    """The right tokens of a call and what kind of rows they come from."""

    tokens: np.ndarray
    all_neg_inf: np.ndarray
    tied: np.ndarray
    cross_shard: np.ndarray
    with_nan: np.ndarray


def expected(call: Call, tie_rule: str) -> Expected:
    """The oracle's tokens, in row blocks. ``tie_rule`` is target_id (the contract's) or draft_id."""
    batch = call.batch
    result = Expected(np.empty(batch, np.int64), *(np.zeros(batch, bool) for _ in range(4)))
    step = max(1, _BLOCK_VALUES // max(1, call.layout.vocab_size))
    shards = [(start, end) for start, end in call.layout.bounds if end > start]
    for begin in range(0, batch, step):
        part = slice(begin, begin + step)
        values = bits.decode(call.logits[part], call.dtype, np.float32)  # exact for all three dtypes
        if call.d2t is not None and tie_rule == "draft_id":
            draft = oracle_tokens(values)
            result.tokens[part] = draft + call.d2t[draft]
        else:
            result.tokens[part] = oracle_tokens(values, call.d2t)
        top = values.max(axis=1)  # a NaN, where there is one
        result.with_nan[part] = np.isnan(top)
        result.all_neg_inf[part] = top == -np.inf
        winners = values == top[:, None]
        if result.with_nan[part].any():
            winners |= np.isnan(values)
        result.tied[part] = np.count_nonzero(winners, axis=1) > 1
        holding = np.zeros(len(top), np.int64)
        for start, end in shards:
            holding += winners[:, start:end].any(axis=1)
        result.cross_shard[part] = holding > 1
    return result


def expected_tokens(call: Call, tie_rule: str = "target_id") -> np.ndarray:
    """The oracle's tokens alone: int64 ``(batch,)``."""
    tokens = np.empty(call.batch, np.int64)
    step = max(1, _BLOCK_VALUES // max(1, call.layout.vocab_size))
    by_draft_id = call.d2t is not None and tie_rule == "draft_id"
    for begin in range(0, call.batch, step):
        values = bits.decode(call.logits[begin : begin + step], call.dtype, np.float32)
        tokens[begin : begin + step] = oracle_tokens(values, None if by_draft_id else call.d2t)
    return tokens + call.d2t[tokens] if by_draft_id and call.d2t is not None else tokens


def came_through(run: Run, case: Case, tokens: Sequence[np.ndarray]) -> bool:
    """Whether every rank answered every call with these tokens and broke no rule of the contract.

    Only for a quick yes: what is wrong where it is not, `judge` finds out.
    """
    for rank in run.ranks:
        if rank.end is not None or len(rank.calls) != len(case.calls):
            return False
        for outcome, first, right in zip(rank.calls, run.ranks[0].calls, tokens, strict=True):
            broken = outcome.modified is not None or outcome.table_modified or outcome.overwritten is not None
            if outcome.status != "answered" or broken or outcome.issued != first.issued:
                return False
            if not np.array_equal(outcome.tokens, right):  # type: ignore[arg-type]
                return False
            if outcome.reference is not None and not np.array_equal(outcome.reference, right):
                return False
    return True


def judge(case: Case, run: Run, tie_rule: str = "target_id", most_rows: int = _CLASSIFIED_ROWS) -> Judgement:
    """``most_rows``: wrong rows of a call that are given a kind; one is enough to fail."""
    judgement = Judgement()
    broken = judge_ends(run)
    if broken is not None:
        judgement.findings.append(broken)
        return judgement
    for index, call in enumerate(case.calls):
        outcomes = [rank.calls[index] for rank in run.ranks]
        statuses = {outcome.status for outcome in outcomes}
        if statuses == {"refused"}:
            judgement.refused = outcomes[0].message
            judgement.tally.refused_calls += 1
            if any(outcome.issued > 0 for outcome in outcomes):
                message = f"refused ({outcomes[0].message}) after {max(o.issued for o in outcomes)} collective(s)"
                judgement.findings.append(Finding(Kind.REFUSED_LATE, Kind.REFUSED_LATE.value, index, message))
            return judgement
        judgement.tally.calls += 1
        _judge_call(index, call, run, tie_rule, judgement, most_rows)
    return judgement


def judge_ends(run: Run) -> Finding | None:
    """The first cause of a case that did not come through: a death before a raise before a wait."""
    died = {i: rank.end for i, rank in enumerate(run.ranks) if isinstance(rank.end, Died)}
    last = {i: rank.calls[-1] for i, rank in enumerate(run.ranks) if rank.calls and rank.end is None}
    call = max((len(rank.calls) - 1 for rank in run.ranks), default=0)
    call = max(call, 0)
    states = describe(run)
    if died:
        # gloo aborts whoever receives too much and closes everyone's connections: only the first cause has a name.
        how = sorted({end.how for end in died.values()})
        first = how[0] if len(how) == 1 else next((h for h in how if h != "SIGABRT"), how[0])
        return Finding(Kind.DIED, f"{Kind.DIED.value}:{first}", call, states, ranks=tuple(died))
    raised = {i: outcome for i, outcome in last.items() if outcome.status == "raised"}
    refused = {i: outcome for i, outcome in last.items() if outcome.status == "refused"}
    stuck = tuple(i for i, rank in enumerate(run.ranks) if isinstance(rank.end, Stuck))
    if raised:
        # What gloo or NCCL raises on the ranks that were left alone is an effect, not a cause.
        types = sorted({o.error_type for o in raised.values() if not _is_transport_error(o.error_type, o.message)})
        name = "+".join(types) or "transport"
        kind = Kind.RAISED if len(raised) == len(run.ranks) else Kind.RAISED_ON_SOME_RANKS
        return Finding(kind, f"{kind.value}:{name}", call, states, ranks=tuple(raised))
    if refused and len(refused) < len(run.ranks):
        kind = Kind.REFUSED_ON_SOME_RANKS
        return Finding(kind, kind.value, call, states, ranks=tuple(refused))
    wrong = {i: outcome for i, outcome in last.items() if outcome.status == "wrong form"}
    if wrong:  # such a rank goes no further either, and the others may wait for it at the next call
        return Finding(Kind.RESULT_TYPE, Kind.RESULT_TYPE.value, call, states, ranks=tuple(wrong))
    if stuck:
        return Finding(Kind.HANG, Kind.HANG.value, call, states, ranks=stuck)
    return None


def _is_transport_error(error_type: str, message: str) -> bool:
    words = ("Connection closed", "Connection reset", "Timed out", "gloo", "NCCL", "Broken pipe")
    return error_type in ("DistBackendError", "DistNetworkError", "RuntimeError") and any(w in message for w in words)


def describe(run: Run) -> str:
    """One line a rank: how each ended."""
    return "\n".join(f"rank {index}: {_describe_rank(rank)}" for index, rank in enumerate(run.ranks))


def _describe_rank(rank: RankOutcome) -> str:
    if isinstance(rank.end, Died):
        return f"died by {rank.end.how}"
    if isinstance(rank.end, Stuck):
        return f"no answer ({rank.end.where})"
    if not rank.calls:
        return "nothing heard"
    outcome = rank.calls[-1]
    if outcome.status == "raised":
        return f"raised {outcome.error_type}: {outcome.message.splitlines()[0][:200] if outcome.message else ''}"
    if outcome.status == "refused":
        return f"refused: {outcome.message}"
    if outcome.status == "wrong form":
        return outcome.message
    tokens = outcome.tokens
    return "answered" if tokens is None else f"answered {np.array2string(tokens, threshold=8, edgeitems=3)}"


def _judge_call(index: int, call: Call, run: Run, tie_rule: str, judgement: Judgement, most_rows: int) -> None:
    outcomes = [rank.calls[index] for rank in run.ranks]
    right = expected(call, tie_rule)
    tokens = np.stack([outcome.tokens for outcome in outcomes if outcome.tokens is not None])

    def found(kind: Kind, message: str, rows: np.ndarray | None = None, ranks: tuple[int, ...] = ()) -> None:
        listed = () if rows is None else tuple(int(row) for row in rows)
        judgement.findings.append(Finding(kind, kind.value, index, message, listed, ranks))

    for rank, outcome in enumerate(outcomes):
        if outcome.reference is None:
            continue
        truth = right.tokens if tie_rule == "target_id" else expected(call, "target_id").tokens
        wrong = np.flatnonzero(outcome.reference != truth)
        if len(wrong):
            message = f"rank {rank}: full gather gives {outcome.reference[wrong[0]]}, NumPy {truth[wrong[0]]}"
            found(Kind.REFERENCE, message, wrong, (rank,))
            break
    issued = {outcome.issued for outcome in outcomes}
    if len(issued) > 1:
        counts = ", ".join(f"rank {rank}: {outcome.issued}" for rank, outcome in enumerate(outcomes))
        found(Kind.COLLECTIVE_MISMATCH, f"collectives issued: {counts}")
    sequences = [outcome.collectives for outcome in outcomes]
    if len(issued) == 1 and len(set(sequences)) > 1:
        other = next(rank for rank, sequence in enumerate(sequences) if sequence != sequences[0])
        message = f"rank 0 issued {_sequence(sequences[0])}; rank {other} {_sequence(sequences[other])}"
        found(Kind.COLLECTIVE_MISMATCH, message)
    modified = {rank: o.modified for rank, o in enumerate(outcomes) if o.modified is not None}
    if modified:
        rank, (row, column) = min(modified.items())
        where = f"rank {rank}: row {row}, local column {column} was changed"
        found(Kind.INPUT_MODIFIED, where, np.array([row]), tuple(modified))
    tables = tuple(rank for rank, outcome in enumerate(outcomes) if outcome.table_modified)
    if tables and not modified:
        found(Kind.INPUT_MODIFIED, f"rank {tables[0]}: the table was changed", ranks=tables)
    overwritten = [(rank, o.overwritten) for rank, o in enumerate(outcomes) if o.overwritten is not None]
    if overwritten:
        rank, later = overwritten[0]
        rows = np.flatnonzero(later != tokens[rank])
        row = rows[0]
        message = f"rank {rank}: row {row} was {tokens[rank][row]} when returned, {later[row]} after later calls"
        found(Kind.RESULT_OVERWRITTEN, message, rows, tuple(r for r, _ in overwritten))
    differing = (tokens != tokens[0]).any(axis=0)
    if differing.any():
        row = int(np.flatnonzero(differing)[0])
        answers = ", ".join(f"rank {rank}: {tokens[rank][row]}" for rank in range(len(tokens)))
        found(Kind.RANK_DISAGREEMENT, f"row {row}: {answers}", np.flatnonzero(differing))
    wrong_rows = ~differing & (tokens[0] != right.tokens)
    filler = np.zeros(call.batch, bool)
    if call.d2t is not None:
        # The reference answers filler id 0 on such a row, a mapped path the target of draft 0: counted, not judged.
        filler = right.all_neg_inf
        wrong_rows &= ~(filler & ((tokens[0] == 0) | (tokens[0] == call.d2t[0])))
    by_kind: dict[Kind, list[int]] = {}
    for row in np.flatnonzero(wrong_rows)[:most_rows]:
        by_kind.setdefault(classify(call, int(row), int(tokens[0][row])), []).append(int(row))
    for kind, listed in by_kind.items():
        row = listed[0]
        found(kind, f"row {row}: returned {tokens[0][row]}, expected {right.tokens[row]}", np.array(listed))
    judgement.tally.add(
        Tally(
            rows=call.batch,
            tied_rows=int(right.tied.sum()),
            cross_shard_ties=int(right.cross_shard.sum()),
            nan_rows=int(right.with_nan.sum()),
            filler_rows=int(filler.sum()),
            filler_differs=int((filler & (tokens[0] != right.tokens)).sum()),
        )
    )


def _sequence(collectives: tuple[tuple[str, int], ...] | None) -> str:
    return ", ".join(f"{name} of {size} bytes" for name, size in collectives or ()) or "nothing"


def classify(call: Call, row: int, token: int) -> Kind:
    """The kind of one wrong token, from the row's values and the table alone."""
    values = bits.decode(call.logits[row], call.dtype)
    if call.d2t is None:
        if not 0 <= token < call.layout.vocab_size:
            return Kind.ID_OUT_OF_RANGE
        column = token
    else:
        targets = np.arange(len(call.d2t)) + call.d2t
        columns = np.flatnonzero(targets == token)
        if not len(columns):
            return Kind.ID_OUT_OF_RANGE if not 0 <= token <= targets.max() else Kind.WRONG_TARGET
        column = int(columns[0])
    if np.isnan(values).any():
        return Kind.NAN_RULE
    top = values.max()
    if top == -np.inf:
        return Kind.ALL_NEG_INF_ROW
    return Kind.WRONG_TIE if values[column] == top else Kind.WRONG_MAXIMUM
