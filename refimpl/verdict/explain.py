"""One line that says why, where the numbers say it.

Each hypothesis is a small model of a wrong local reduction in NumPy: it predicts the token of every row. It is
believed if it predicts every token of the minimal case, and nearly all rows that tell it apart in bigger cases of the
same path. No name of a path plays a part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from refimpl import bits
from refimpl.case import Call, Case
from refimpl.oracle import oracle_tokens
from refimpl.ranks.outcome import Run, Stuck
from refimpl.verdict.kinds import Kind
from refimpl.vocab import d2t as tables

if TYPE_CHECKING:
    from refimpl.verdict.reduce import Counterexample

_TOP = np.iinfo(np.int64).max
_BOTTOM = np.iinfo(np.int64).min
_NO_TOKEN = np.iinfo(np.int64).min
_BELIEVED_FROM = 0.9
_COMPARED_CALLS = 4
_COMPARED_VALUES = 1 << 19
_WIDE_VALUES = 1 << 22  # of more values only those of the shards' winners are looked at


@dataclass(frozen=True)
class Explanation:
    """Why, in one line, and the obligation (O1 to O7) that this refutes."""

    text: str
    obligation: str


@dataclass(frozen=True, eq=False)
class Observation:
    """A case and what the ranks did with it."""

    case: Case
    run: Run
    tie_rule: str


def explain(counterexample: Counterexample) -> str | None:
    """One line that says why, from the minimal case alone, or None where the suite does not know."""
    found = explanation(counterexample, ())
    return None if found is None else found.text


def explanation(counterexample: Counterexample, others: Sequence[Observation]) -> Explanation | None:
    """``others``: cases with more rows of the same path, for a hypothesis to fail on."""
    if not counterexample.run.complete:
        return _of_an_end(counterexample)
    if counterexample.kind is Kind.RESULT_OVERWRITTEN:
        return _of_an_overwritten_result(counterexample)
    if counterexample.kind in (Kind.NONDETERMINISTIC, Kind.COLLECTIVE_MISMATCH, Kind.INPUT_MODIFIED):
        return None
    minimal = Observation(counterexample.case, counterexample.run, counterexample.tie_rule)
    seen = [_rows(minimal, index) for index in range(len(minimal.case.calls))]
    failing = seen[counterexample.finding.call]
    if failing is None or any(rows is None for rows in seen):
        return None
    row = int(next(iter(np.flatnonzero((failing.observed != failing.right).any(axis=0))), 0))
    samples = [rows for other in others if other.run.complete for rows in _sample(other)]
    best: tuple[float, Explanation] | None = None
    for hypothesis in _HYPOTHESES:
        if counterexample.kind is Kind.ROW_DEPENDENCE and hypothesis.obligation != "O6":
            continue  # the row alone is right, which refutes every model of a row alone
        if hypothesis.asks_every_cell and failing.call.logits.size > _WIDE_VALUES:
            continue
        if not all(hypothesis.fits(rows) for rows in seen if rows is not None):
            continue
        score = _share(hypothesis, samples)
        if score >= _BELIEVED_FROM and (best is None or score > best[0]):
            best = score, Explanation(hypothesis.words(failing, row), hypothesis.obligation)
    if best is not None:
        return best[1]
    return _of_padding(failing, row) if counterexample.kind is Kind.PADDING_RETURNED else None


# -- what was seen ------------------------------------------------------------------------------------


# Places of bit patterns of a dtype in an order, as int64.
Order = Callable[[np.ndarray, str], np.ndarray]


@dataclass(eq=False)
class _Rows:
    """Rows of one call, their right tokens and those of every rank."""

    call: Call
    tie_rule: str
    observed: np.ndarray  # (tp_size, batch)
    previous: np.ndarray | None = None  # right tokens of the call before, where it has the same batch
    bystanders: int = 0
    is_part: bool = False

    @cached_property
    def order(self) -> np.ndarray:
        """int64 (batch, vocab_size): the contract's order of the values."""
        return _ordered(self.call.logits, self.call.dtype)

    @cached_property
    def values(self) -> np.ndarray:
        return self.call.values()

    @cached_property
    def is_nan(self) -> np.ndarray:
        return bits.is_nan(self.call.logits, self.call.dtype)

    @cached_property
    def is_filler(self) -> np.ndarray:
        """Rows that are all -inf, to which the reference gives filler id 0 where there is a table."""
        return np.asarray(self.order.max(axis=1) == -bits.INFINITY[self.call.dtype])

    @cached_property
    def right(self) -> np.ndarray:
        if self.call.d2t is not None and self.tie_rule == "draft_id":
            return self.mapped(oracle_tokens(self.values))
        return oracle_tokens(self.values, self.call.d2t)

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        return self.call.layout.bounds

    @property
    def tp_size(self) -> int:
        return self.call.layout.tp_size

    @cached_property
    def targets(self) -> np.ndarray:
        d2t = self.call.d2t
        return np.arange(self.call.layout.vocab_size) if d2t is None else tables.targets(d2t)

    def mapped(self, ids: np.ndarray) -> np.ndarray:
        """Tokens of draft ids; an id that is none has no target, and without a table is returned as it is."""
        if self.call.d2t is None:
            return ids
        inside = (ids >= 0) & (ids < len(self.targets))
        return np.where(inside, self.targets[np.clip(ids, 0, len(self.targets) - 1)], _NO_TOKEN)

    @cached_property
    def winners(self) -> np.ndarray:
        """Draft ids of every shard's first greatest column, (tp_size, batch); an empty shard gives its start."""
        return self.winners_by(self.order)

    def winners_by(self, order: np.ndarray, *, last: bool = False) -> np.ndarray:
        found = []
        for start, end in self.bounds:
            columns = _argmax(order[:, start:end], 1, last) if end > start else np.zeros(len(order), np.intp)
            found.append(start + columns)
        return np.stack(found)

    def offered(self, winners: np.ndarray, order: Order | None = None) -> np.ndarray:
        """The winners' places in an order, (tp_size, batch); an empty shard is below everything."""
        columns = np.minimum(winners, self.call.layout.vocab_size - 1)
        patterns = self.call.logits[np.arange(self.call.batch), columns]
        return np.where(self.is_empty[:, None], _BOTTOM, (order or _ordered)(patterns, self.call.dtype))

    @property
    def is_empty(self) -> np.ndarray:
        return np.array([start == end for start, end in self.bounds])


def _ordered(logits: np.ndarray, dtype: str) -> np.ndarray:
    return np.where(bits.is_nan(logits, dtype), _TOP, bits.ordinal(logits, dtype))


def _argmax(values: np.ndarray, axis: int, last: bool = False) -> np.ndarray:
    if not last:
        return np.asarray(values.argmax(axis=axis))
    return np.asarray(values.shape[axis] - 1 - np.flip(values, axis).argmax(axis=axis))


def _best(offered: np.ndarray, ids: np.ndarray, *, last: bool = False) -> np.ndarray:
    """Of every row the id of the rank that offers most."""
    rank = _argmax(offered, 0, last)
    return np.asarray(ids[rank, np.arange(ids.shape[1])])


def _rows(observation: Observation, index: int, chosen: np.ndarray | None = None) -> _Rows | None:
    # Ranks stop at a call that they refuse; those after it have no outcome.
    tokens = [rank.calls[index].tokens if len(rank.calls) > index else None for rank in observation.run.ranks]
    if any(answer is None for answer in tokens):
        return None
    observed = np.stack(tokens)  # type: ignore[arg-type]
    call = observation.case.calls[index]
    before = observation.case.calls[index - 1] if index else None
    previous = None
    if before is not None and before.batch == call.batch and before.layout.tp_size == call.layout.tp_size:
        previous = oracle_tokens(before.values(), before.d2t)
    if chosen is not None:
        call, observed = call.rows(chosen), observed[:, chosen]
        previous = None if previous is None else previous[chosen]
    return _Rows(call, observation.tie_rule, observed, previous, observation.case.bystanders, chosen is not None)


def _sample(observation: Observation) -> list[_Rows]:
    """The last few calls, of a big one its first rows."""
    found = []
    for index, call in list(enumerate(observation.case.calls))[-_COMPARED_CALLS:]:
        number = min(call.batch, max(64, _COMPARED_VALUES // call.layout.vocab_size))
        rows = _rows(observation, index, None if number == call.batch else np.arange(number))
        if rows is not None and number:
            found.append(rows)
    return found


def _share(hypothesis: _Hypothesis, samples: Sequence[_Rows]) -> float:
    """Of the rows on which the ranks or the hypothesis are wrong, the part on which they agree."""
    telling = agreeing = 0
    for rows in samples:
        if rows.is_part and hypothesis.obligation == "O6":
            continue  # a model of the whole batch
        predicted = np.broadcast_to(hypothesis.predict(rows), rows.observed.shape)
        tells = (predicted != rows.right).any(axis=0) | (rows.observed != rows.right).any(axis=0)
        telling += int(tells.sum())
        agreeing += int((tells & (predicted == rows.observed).all(axis=0)).sum())
    return agreeing / telling if telling else 1.0


# -- hypotheses ---------------------------------------------------------------------------------------

Predict = Callable[[_Rows], np.ndarray]  # tokens (batch,), or (tp_size, batch) where ranks differ


@dataclass(frozen=True)
class _Hypothesis:
    text: str | Callable[[_Rows, int], str]
    obligation: str
    predict: Predict
    asks_every_cell: bool = False

    def fits(self, rows: _Rows) -> bool:
        return bool((self.predict(rows) == rows.observed).all())

    def words(self, rows: _Rows, row: int) -> str:
        return self.text if isinstance(self.text, str) else self.text(rows, row)


# In this order: of hypotheses that explain equally much the first is taken. The plain reduction is the first of all.
_HYPOTHESES: list[_Hypothesis] = []


def _hypothesis(
    text: str | Callable[[_Rows, int], str], obligation: str, asks_every_cell: bool = False
) -> Callable[[Predict], Predict]:
    def register(predict: Predict) -> Predict:
        _HYPOTHESES.append(_Hypothesis(text, obligation, predict, asks_every_cell))
        return predict

    return register


def _reduced(rows: _Rows, across: Order | None = None, *, inside: Order | None = None) -> np.ndarray:
    """Draft ids of a local reduction with other orders of the values inside a shard and across ranks."""
    winners = rows.winners if inside is None else rows.winners_by(inside(rows.call.logits, rows.call.dtype))
    return _best(rows.offered(winners, across), winners)


def _across(text: str, obligation: str, order: Order) -> None:
    _hypothesis(text, obligation)(lambda rows: rows.mapped(_reduced(rows, order)))


def _everywhere(text: str, obligation: str, order: Order) -> None:
    _hypothesis(text, obligation, True)(lambda rows: rows.mapped(_reduced(rows, order, inside=order)))


def _returned(text: str, obligation: str, ids: Predict) -> None:
    """Draft ids that are returned, after mapping where there is a table."""
    _hypothesis(text, obligation)(lambda rows: rows.mapped(ids(rows)))


# Ties. NaNs tie too: a path may treat them like its other ties or apart.

_returned("a tie under the table is broken by draft id", "O5", _reduced)


def _last(rows: _Rows, inside: bool, across: bool) -> np.ndarray:
    winners = rows.winners_by(rows.order, last=True) if inside else rows.winners
    return rows.mapped(_best(rows.offered(winners), winners, last=across))


def _but_in_nan_rows(tokens: Predict) -> Predict:
    return lambda rows: np.where(rows.is_nan.any(axis=1), rows.right, tokens(rows))


for _text, _obligation, _inside, _between in (
    ("the last rank wins a tie across ranks", "O3", False, True),
    ("the last column wins a tie within a shard", "O1", True, False),
    ("the last of all tied columns wins", "O1", True, True),
):
    _tokens = partial(_last, inside=_inside, across=_between)
    _hypothesis(_text, _obligation, True)(_but_in_nan_rows(_tokens))
    _hypothesis(_text, _obligation, True)(_tokens)


@_hypothesis("ranks are folded upon each other in a tree that loses their order: of ranks 1 and 2 of 3, 2 wins", "O3")
def _folded_tree(rows: _Rows) -> np.ndarray:
    offered = rows.offered(rows.winners)
    nodes = [(offered[rank], rows.winners[rank]) for rank in np.flatnonzero(~rows.is_empty)]
    while len(nodes) > 1:
        half = (len(nodes) + 1) // 2
        for place, (value, index) in enumerate(nodes[half:]):
            wins = value > nodes[place][0]
            nodes[place] = np.where(wins, value, nodes[place][0]), np.where(wins, index, nodes[place][1])
        nodes = nodes[:half]
    return rows.mapped(nodes[0][1])


def _with_signed_zeros(patterns: np.ndarray, dtype: str) -> np.ndarray:
    doubled = np.where(bits.is_nan(patterns, dtype), _TOP, bits.ordinal(patterns, dtype) * 2)
    return np.where(patterns == bits.sign_bit(dtype), -1, doubled)


_across("-0.0 is ordered under +0.0", "O2", _with_signed_zeros)
_everywhere("-0.0 is ordered under +0.0", "O2", _with_signed_zeros)

# Tables.


@_hypothesis("a tie between ranks is broken by draft id, one inside a shard by target id", "O5", True)
def _by_target_inside(rows: _Rows) -> np.ndarray:
    tied = rows.order == rows.order.max(axis=1, keepdims=True)
    winners = rows.winners_by(np.where(tied, _TOP - rows.targets, _BOTTOM))
    return np.where(rows.is_filler, rows.right, rows.mapped(_best(rows.offered(rows.winners), winners)))


@_hypothesis("a tie inside a shard is broken by draft id, one between ranks by target id", "O5")
def _by_target_across(rows: _Rows) -> np.ndarray:
    offered = rows.offered(rows.winners)
    lowest = np.where(offered == offered.max(axis=0), rows.mapped(rows.winners), _TOP).min(axis=0)
    return np.where(rows.is_filler, rows.right, lowest)


_TABLE_MISTAKES: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]] = {
    # From ids, their offsets and their targets to tokens.
    "the table was not applied: the draft id is returned": lambda ids, offsets, targets: ids,
    "the table's entry is returned as if it were a target id, and not an offset": lambda ids, offsets, targets: offsets,
    "the table was applied twice": lambda ids, offsets, targets: targets + offsets,
    "the table's offsets wrap from 32768 on: they are kept as int16": lambda ids, offsets, targets: (
        ids + offsets.astype(np.int16)
    ),
}
for _text, _mistake in _TABLE_MISTAKES.items():

    @_hypothesis(_text, "O5")
    def _(rows: _Rows, mistake: Any = _mistake) -> np.ndarray:
        if rows.call.d2t is None:
            return np.full_like(rows.right, _NO_TOKEN)
        ids = _reduced(rows)
        return np.asarray(mistake(ids, rows.targets[ids] - ids, rows.targets[ids]), np.int64)


@_hypothesis("the table is indexed by the shard's column, not by the draft id", "O5")
def _table_by_column(rows: _Rows) -> np.ndarray:
    columns = rows.winners - np.array([start for start, _ in rows.bounds])[:, None]
    return _best(rows.offered(rows.winners), rows.winners + rows.targets[columns] - columns)


@_hypothesis("target ids from 16777217 on are rounded: they travel as float32", "O2")
def _targets_in_float32(rows: _Rows) -> np.ndarray:
    if rows.call.d2t is None:
        return np.full_like(rows.right, _NO_TOKEN)
    return rows.mapped(_reduced(rows)).astype(np.float32).astype(np.int64)


@_hypothesis("only rank 0 applies the table", "O7")
def _table_on_rank_zero(rows: _Rows) -> np.ndarray:
    ids = _reduced(rows)
    return np.stack([rows.mapped(ids), *[ids] * (rows.tp_size - 1)])


# Values that lose something on the way.


def _narrowed(patterns: np.ndarray, dtype: str, *, to: str) -> np.ndarray:
    return _ordered(bits.encode(bits.decode(patterns, dtype), to), to)


def _numbers(order: Callable[[np.ndarray, str], np.ndarray]) -> Order:
    """An order of numbers, given their places; a NaN stays above all."""
    return lambda patterns, dtype: np.where(
        bits.is_nan(patterns, dtype), _TOP, order(bits.ordinal(patterns, dtype), dtype)
    )


for _to in ("bfloat16", "float16"):
    _order = partial(_narrowed, to=_to)
    _across(f"values are rounded to {_to} before the exchange", "O2", _order)

    @_hypothesis(f"values are rounded to {_to} before columns of a shard are compared", "O1", True)
    def _(rows: _Rows, order: Order = _order) -> np.ndarray:
        return rows.mapped(_reduced(rows, inside=order))

    _everywhere(f"values are rounded to {_to} before they are compared", "O2", _order)


def _widened(patterns: np.ndarray, dtype: str) -> np.ndarray:
    return _narrowed(patterns, dtype, to="float32")


_NORMAL = {"float32": 1 << 23, "bfloat16": 1 << 7, "float16": 1 << 10}

_across(
    "the lower 16 bits of values are lost before the exchange",
    "O2",
    lambda patterns, dtype: np.where(bits.is_nan(patterns, dtype), _TOP, _widened(patterns, dtype) >> 16),
)
_across(
    "infinities travel as the greatest finite values and tie with them",
    "O2",
    _numbers(lambda place, dtype: np.clip(place, 1 - bits.INFINITY[dtype], bits.INFINITY[dtype] - 1)),
)
_across(
    "subnormal values are taken for zero",
    "O2",
    _numbers(lambda place, dtype: np.where(np.abs(place) < _NORMAL[dtype], 0, place)),
)
_across(
    "negative values are compared in reverse, as their bits stand in a signed integer",
    "O2",
    _numbers(lambda place, dtype: np.where(place < 0, -(2**40) - place, place)),
)
_across(
    "negative values beat positive ones, as their bits stand in an unsigned integer",
    "O2",
    _numbers(lambda place, dtype: np.where(place < 0, 2**40 - place, place)),
)


def _scanned(rows: _Rows, offered: np.ndarray, beats: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    """Tokens where one rank after the other challenges the best so far."""
    first, *others = np.flatnonzero(~rows.is_empty)
    value, index = offered[first], rows.winners[first]
    for rank in others:
        wins = beats(offered[rank], value)
        value, index = np.where(wins, offered[rank], value), np.where(wins, rows.winners[rank], index)
    return rows.mapped(index)


@_hypothesis("values are compared by the sign of an int32 difference, which wraps", "O2")
def _wrapping_difference(rows: _Rows) -> np.ndarray:
    offered = np.where(rows.offered(rows.winners) == _TOP, 0x7FFFFFFF, rows.offered(rows.winners, _widened))
    return _scanned(rows, offered, lambda new, old: (new - old).astype(np.int32) > 0)


@_hypothesis("each rank compares its own exact value with others rounded to bfloat16", "O7")
def _own_value_exact(rows: _Rows) -> np.ndarray:
    exact = rows.offered(rows.winners, _widened)
    narrow = rows.offered(rows.winners, partial(_narrowed, to="bfloat16"))
    narrow = np.where((narrow == _TOP) | (narrow == _BOTTOM), narrow, narrow << 16)  # to float32's scale
    own = np.eye(rows.tp_size, dtype=bool)[:, :, None]
    return np.stack([rows.mapped(_best(np.where(mine, exact, narrow), rows.winners)) for mine in own])


# NaNs.


def _nan_as(place: Callable[[np.ndarray, str], np.ndarray | int]) -> Order:
    return lambda patterns, dtype: np.where(
        bits.is_nan(patterns, dtype), place(bits.ordinal(patterns, dtype), dtype), bits.ordinal(patterns, dtype)
    )


_everywhere("a NaN loses", "O2", _nan_as(lambda place, dtype: -bits.INFINITY[dtype]))


@_hypothesis("a NaN wins its shard but loses across ranks unless it is the first rank's", "O3")
def _nan_needs_the_first_rank(rows: _Rows) -> np.ndarray:
    return _scanned(rows, rows.offered(rows.winners), lambda new, old: (new > old) & (new != _TOP) & (old != _TOP))


_across("a NaN wins its shard but loses across ranks", "O3", _nan_as(lambda place, dtype: _BOTTOM + 1))
_across("a NaN travels as 0.0", "O2", _nan_as(lambda place, dtype: 0))
_across(
    "a NaN with its sign bit set loses",
    "O2",
    _nan_as(lambda place, dtype: np.where(place < 0, _BOTTOM + 1, _TOP)),
)
_across(
    "of two NaNs the one of the greater payload wins, not the first", "O2", _nan_as(lambda place, dtype: np.abs(place))
)
_returned(
    "where the maximum is a NaN no column equals it, and an id past the last one is returned",
    "O3",
    lambda rows: np.where(rows.is_nan.any(axis=1), rows.call.layout.vocab_size, _reduced(rows)),
)

# Ids.


def _rounded(ids: np.ndarray, dtype: str) -> np.ndarray:
    through = bits.decode(bits.encode(ids, dtype), dtype)
    return np.where(np.isfinite(through), through, -1).astype(np.int64)


# The widest format first: had a narrower one been at work, the case would have shrunk to a lower id.
for _dtype, _first in (("float32", 2**24 + 1), ("float16", 2049), ("bfloat16", 257)):
    _returned(
        f"ids from {_first} on are rounded: they travel as {_dtype}",
        "O2",
        lambda rows, dtype=_dtype: _rounded(_reduced(rows), dtype),  # type: ignore[misc]
    )
for _integer in (np.uint16, np.int16, np.uint8, np.int8):
    _returned(
        f"ids wrap from {np.iinfo(_integer).max + 1} on: they are kept as {np.dtype(_integer).name}",
        "O2",
        lambda rows, integer=_integer: _reduced(rows).astype(integer).astype(np.int64),  # type: ignore[misc]
    )

_OFFSETS: dict[str, Callable[[_Rows, int], int]] = {
    "the shard's start is not added": lambda rows, rank: 0,
    "the shard's start is added twice": lambda rows, rank: 2 * rows.bounds[rank][0],
    "the offset is rank x padded_size, not the shard's start": lambda rows, rank: rank * rows.call.layout.padded_size,
    "the offset is rank x its own real width, not the shard's start": lambda rows, rank: (
        rank * (rows.bounds[rank][1] - rows.bounds[rank][0])
    ),
    "the offset is rank x the even share, rounded up, not the shard's start": lambda rows, rank: (
        rank * -(-rows.call.layout.vocab_size // rows.tp_size)
    ),
    "the offset is rank x the even share, rounded down, not the shard's start": lambda rows, rank: (
        rank * (rows.call.layout.vocab_size // rows.tp_size)
    ),
    "the offset is another rank's: the rank in the world counts, not that in the group": lambda rows, rank: rows.bounds[
        (rank + rows.bystanders) % rows.tp_size
    ][0],
}
for _text, _offset in _OFFSETS.items():

    def _words(rows: _Rows, row: int, text: str = _text, offset: Callable[[_Rows, int], int] = _offset) -> str:
        winner = int(_reduced(rows)[row])
        rank = next(r for r, (start, end) in enumerate(rows.bounds) if start <= winner < end)
        return f"ids of rank {rank} are off by {offset(rows, rank) - rows.bounds[rank][0]}: {text}"

    @_hypothesis(_words, "O4")
    def _(rows: _Rows, offset: Callable[[_Rows, int], int] = _offset) -> np.ndarray:
        off = [offset(rows, rank) - start for rank, (start, _) in enumerate(rows.bounds)]
        return rows.mapped(_best(rows.offered(rows.winners), rows.winners + np.array(off)[:, None]))


# Columns that are none of the row's, or are missing.


def _with_padding(rows: _Rows, fill: float | None = None, *, masks_last: bool = False) -> np.ndarray:
    """Tokens where padding takes part, as it is or filled."""
    call = rows.call
    offered, ids = [], []
    for rank, (start, end) in enumerate(rows.bounds):
        local = call.local_logits(rank)
        if fill is not None:
            local[:, end - start :] = bits.encode(np.array(fill), call.dtype)
        elif masks_last and rank == rows.tp_size - 1:
            local[:, end - start :] = bits.neg_inf(call.dtype)
        order = _ordered(local, call.dtype)
        columns = order.argmax(axis=1)
        offered.append(order[np.arange(len(order)), columns])
        ids.append(start + columns)
    return rows.mapped(_best(np.stack(offered), np.stack(ids)))


def _with_empty_shards(rows: _Rows, fill: float) -> np.ndarray:
    place = int(_ordered(bits.encode(np.array([fill]), rows.call.dtype), rows.call.dtype)[0])
    return rows.mapped(_best(np.where(rows.is_empty[:, None], place, rows.offered(rows.winners)), rows.winners))


def _padding_words(rows: _Rows, row: int) -> str:
    call = rows.call
    top = rows.order[row].max()
    for rank, (start, end) in enumerate(rows.bounds):
        padding = call.local_logits(rank)[row, end - start :]
        order = _ordered(padding, call.dtype)
        if len(order) and order.max() >= top:
            column = int(order.argmax())
            value = bits.text(int(padding[column]), call.dtype)
            return f"padding takes part: rank {rank}, local column {end - start + column} with value {value} won"
    return "padding takes part"


def _lowest_finite(dtype: str) -> float:
    return float(bits.decode(np.array([bits.neg_inf(dtype) - 1], bits.STORAGE[dtype]), dtype)[0])


_hypothesis(_padding_words, "O4", True)(_with_padding)
_hypothesis("only the last rank masks its padding", "O4", True)(partial(_with_padding, masks_last=True))
_hypothesis("padding takes part with a finite value, which beats -inf", "O4", True)(
    lambda rows: _with_padding(rows, _lowest_finite(rows.call.dtype))
)
_hypothesis("an empty shard takes part with a finite value, which beats -inf", "O4")(
    lambda rows: _with_empty_shards(rows, _lowest_finite(rows.call.dtype))
)
for _text, _fill in (("0.0", 0.0), ("-1e4", -1e4)):
    _hypothesis(f"padding takes part with the value {_text}", "O4", True)(partial(_with_padding, fill=_fill))
    _hypothesis(f"an empty shard takes part with the value {_text}", "O4")(partial(_with_empty_shards, fill=_fill))


def _without(rows: _Rows, hidden: Sequence[slice]) -> np.ndarray:
    """Tokens where these columns count as -inf."""
    order = rows.order.copy()
    for columns in hidden:
        order[:, columns] = -bits.INFINITY[rows.call.dtype]
    winners = rows.winners_by(order)
    offered = order[np.arange(len(order)), np.minimum(winners, order.shape[1] - 1)]
    return rows.mapped(_best(np.where(rows.is_empty[:, None], _BOTTOM, offered), winners))


@_hypothesis("a shard without padding is masked as a whole", "O1", True)
def _masked_without_padding(rows: _Rows) -> np.ndarray:
    return _without(rows, [slice(*rows.bounds[r]) for r, padding in enumerate(rows.call.num_padding) if not padding])


def _even_share(rows: _Rows) -> int:
    return max(rows.call.layout.vocab_size // rows.tp_size, 1)


@_hypothesis(lambda rows, row: f"only the first {_even_share(rows)} columns of a shard are read", "O1", True)
def _even_width(rows: _Rows) -> np.ndarray:
    return _without(rows, [slice(start + _even_share(rows), end) for start, end in rows.bounds])


def _power_of_two(rows: _Rows) -> int:
    return 1 << (rows.tp_size.bit_length() - 1)


_returned(
    "ranks beyond the last power of two are not asked",
    "O3",
    lambda rows: _best(rows.offered(rows.winners)[: _power_of_two(rows)], rows.winners[: _power_of_two(rows)]),
)
_returned(
    "the best value so far begins at 0.0 with id 0, which no negative value replaces",
    "O3",
    lambda rows: np.where(rows.offered(rows.winners).max(axis=0) <= 0, 0, _reduced(rows)),
)

# Reductions of another thing.


def _owned(rows: _Rows, other: int) -> np.ndarray:
    """Every shard's winner, ``other`` from shards without columns."""
    return np.where(rows.is_empty[:, None], other, rows.winners)


def _of_tied_ranks(rows: _Rows) -> np.ndarray:
    offered = rows.offered(rows.winners)
    return np.where(offered == offered.max(axis=0), _owned(rows, 0), 0)


def _first_rank(rows: _Rows) -> np.ndarray:
    return np.asarray(rows.winners[np.flatnonzero(~rows.is_empty)[0]])


_returned("the ids of all ranks' candidates are summed", "O3", lambda rows: _owned(rows, 0).sum(axis=0))
_returned("the ids of the ranks that tie are summed", "O3", lambda rows: _of_tied_ranks(rows).sum(axis=0))
_returned("the first rank's candidate is returned, whatever the others hold", "O3", _first_rank)
_returned(
    "the lowest id of all candidates is returned, whatever its value",
    "O3",
    lambda rows: _owned(rows, rows.call.layout.vocab_size).min(axis=0),
)
_returned(
    "the highest id of all candidates is returned, whatever its value", "O3", lambda rows: _owned(rows, -1).max(axis=0)
)
_returned(
    "the winner's place among the candidates is returned, not its id",
    "O4",
    lambda rows: np.minimum(rows.offered(rows.winners).argmax(axis=0), rows.call.layout.vocab_size - 1),
)
_returned("each rank returns its own shard's winner: nothing is reduced", "O7", lambda rows: _owned(rows, 0))


@_hypothesis("only rank 0 has the reduced token, the other ranks return 0", "O7")
def _rank_zero_only(rows: _Rows) -> np.ndarray:
    return np.stack([rows.right, *[np.zeros_like(rows.right)] * (rows.tp_size - 1)])


@_hypothesis("each rank lets itself win a tie across ranks", "O7")
def _own_tie(rows: _Rows) -> np.ndarray:
    offered = rows.offered(rows.winners)
    rings = [np.roll(np.arange(rows.tp_size), -rank) for rank in range(rows.tp_size)]
    return np.stack([rows.mapped(_best(offered[ring], rows.winners[ring])) for ring in rings])


# A row's place, and what came before it.


@_hypothesis("gathered (tp_size, batch) candidates are read as (batch, tp_size)", "O6")
def _axes_swapped(rows: _Rows) -> np.ndarray:
    shape = rows.winners.shape[::-1]
    return rows.mapped(_best(rows.offered(rows.winners).reshape(shape).T, rows.winners.reshape(shape).T))


@_hypothesis("rows beyond the last multiple of tp_size are not reduced and stay 0", "O6")
def _remainder(rows: _Rows) -> np.ndarray:
    reduced = len(rows.right) // rows.tp_size * rows.tp_size
    return np.where(np.arange(len(rows.right)) < reduced, rows.right, rows.mapped(np.zeros_like(rows.right)))


@_hypothesis(lambda rows, row: f"rows from {row} on are not reduced: the first rank's candidate is returned", "O6")
def _late_rows(rows: _Rows) -> np.ndarray:
    wrong = np.flatnonzero((rows.observed != rows.right).any(axis=0))
    if len(wrong) and wrong[0] < 2:
        return np.full_like(rows.right, _NO_TOKEN)  # no threshold to speak of
    first = wrong[0] if len(wrong) else len(rows.right)
    return np.where(np.arange(len(rows.right)) < first, rows.right, rows.mapped(_first_rank(rows)))


@_hypothesis("a row gets the token of the row before it", "O6")
def _row_before(rows: _Rows) -> np.ndarray:
    return np.concatenate([rows.right[:1], rows.right[:-1]])


@_hypothesis("the token is that of the call before", "O6")
def _call_before(rows: _Rows) -> np.ndarray:
    return rows.right if rows.previous is None else rows.previous


# -- failures that no model of tokens describes -------------------------------------------------------


def _of_padding(rows: _Rows, row: int) -> Explanation | None:
    """Another answer because of padding, not the padding itself."""
    words = _padding_words(rows, row)
    if words == "padding takes part":
        return None
    return Explanation(words.replace("takes part", "changes the answer").replace(" won", " is above the row"), "O4")


def _of_an_end(counterexample: Counterexample) -> Explanation | None:
    run, call = counterexample.run, counterexample.case.calls[counterexample.finding.call]
    if counterexample.kind is Kind.HANG:
        waits = {rank: end for rank, outcome in enumerate(run.ranks) if isinstance(end := outcome.end, Stuck)}
        done = [rank for rank in range(len(run.ranks)) if rank not in waits]
        if waits and done and all(wait.in_collective for wait in waits.values()):
            waiting = _named(list(waits), "waits", "wait")
            return Explanation(f"{_named(done)} done while {waiting} in a collective that needs all ranks", "O7")
        places = {wait.where for wait in waits.values() if wait.in_collective}
        if len(places) > 1 and not done:
            return Explanation("the ranks wait in collectives at different places of the path", "O7")
    alone = len(counterexample.case.calls) == 1  # or it may be the calls before it
    if (
        alone
        and call.batch == 0
        and counterexample.kind in (Kind.DIED, Kind.RAISED, Kind.RAISED_ON_SOME_RANKS, Kind.HANG)
    ):
        return Explanation("the batch is empty", "O7")
    return None


def _named(ranks: Sequence[int], one: str = "is", many: str = "are") -> str:
    numbers = ", ".join(map(str, ranks))
    return f"rank {numbers} {one}" if len(ranks) == 1 else f"ranks {numbers} {many}"


def _of_an_overwritten_result(counterexample: Counterexample) -> Explanation | None:
    finding, run = counterexample.finding, counterexample.run
    rank = finding.ranks[0] if finding.ranks else 0
    calls = run.ranks[rank].calls
    later = calls[finding.call].overwritten
    for index in range(finding.call + 1, len(calls)):
        tokens = calls[index].tokens
        if later is not None and tokens is not None and len(tokens) and len(later):
            number = min(len(later), len(tokens))
            if np.array_equal(later[:number], tokens[:number]):
                text = f"the result of call {finding.call + 1} became that of call {index + 1}: one buffer serves both"
                return Explanation(text, "O6")
    return None
