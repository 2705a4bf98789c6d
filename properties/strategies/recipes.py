"""Recipes: what a property draws. A recipe is a few numbers and words; `expand` makes its `Case`, the same every time.

Rows are many where they are narrow and few where they are wide, so that an example costs milliseconds. No strategy
draws batches of one, vocabularies of whole blocks, groups of a power of two or rows of equal values only: each of
these hides a whole kind of bug.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from properties.strategies import padding as paddings
from properties.strategies import tables, values
from properties.strategies.layouts import layouts, split, with_padding
from properties.strategies.tables import Table
from refimpl import bits
from refimpl.case import Call, Case
from refimpl.vocab.d2t import targets
from refimpl.vocab.layouts import Layout, layout_from_sizes

# Values of all ranks together in one call, by the kind of vocabulary.
CELLS = {"small": 1 << 15, "edges": 1 << 16, "real": 1 << 18}
MOST_ROWS = 4096
_MOST_RELABELLED = 1 << 15
SEEDS = st.integers(0, 2**32 - 1)


# -- rows of all forms ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """One call whose rows are of several forms, see `values.FORMS`.

    ``winners``: palettes of the greatest values of contests, see `values.PALETTES`. With a table that does not rise,
    a quarter of the rows are ties of inverted pairs.
    """

    layout: Layout
    dtype: str
    batch: int
    seed: int
    forms: tuple[str, ...] = values.FORMS
    padding: str = "mixed"
    table: Table | None = None
    winners: tuple[str, ...] = ()
    bystanders: int = 0

    def call(self) -> Call:
        rng = np.random.default_rng(self.seed)
        logits = values.mixed_rows(rng, self.forms, self.layout, self.dtype, self.batch, self.winners)
        d2t = None if self.table is None else self.table.expand(self.layout.vocab_size)
        if d2t is not None and self.batch:
            self._tie_inverted_pairs(rng, logits, d2t)
        return Call(self.layout, self.dtype, logits, paddings.patterns(self.padding, self.dtype, logits), d2t)

    def expand(self) -> Case:
        return Case((self.call(),), self.bystanders)

    def _tie_inverted_pairs(self, rng: np.random.Generator, logits: np.ndarray, d2t: np.ndarray) -> None:
        ids = targets(d2t)
        descents = np.flatnonzero(np.diff(ids) < 0)
        if not len(descents):
            return
        rows = np.flatnonzero(rng.integers(0, 4, self.batch) == 0)
        rows = rows if len(rows) else np.zeros(1, np.int64)
        pairs = np.sort(rng.integers(0, len(d2t), (len(rows), 2)), axis=1)
        neighbours = rng.choice(descents, len(rows))[:, None] + np.arange(2)
        pairs = np.where(ids[pairs[:, :1]] > ids[pairs[:, 1:]], pairs, neighbours)
        greatest = values.from_palettes(rng, ("normal", "steps", "zeros", "extremes", "nans"), self.dtype, len(rows))
        greatest[greatest == bits.neg_inf(self.dtype)] = 0  # of nothing but -inf the lowest target is filler's
        logits[rows] = values.contest_on(rng, self.layout, self.dtype, pairs, greatest)


@functools.cache
def batches(vocab_size: int, sizes: str) -> st.SearchStrategy[int]:
    """Rows of a call: mostly as many as the cells allow, often one or two, now and then none."""
    most = max(3, min(MOST_ROWS, CELLS[sizes] // vocab_size))
    few = [batch for batch in (65, 7, 2, 3, 1, 2, 1, 0) if batch < most]
    return st.sampled_from([*[most] * len(few), *few])


@functools.cache
@st.composite
def rows(
    draw: st.DrawFn,
    tp_size: int,
    sizes: tuple[str, ...] = ("small", "edges", "small", "edges", "small", "real"),
    *,
    forms: tuple[str, ...] = values.FORMS,
    dtypes: tuple[str, ...] = bits.DTYPES,
    table_kinds: tuple[str, ...] | None = None,
    winners: tuple[str, ...] = (),
    batch: int | None = None,
    min_vocab: int = 1,
    min_filled: int = 1,
) -> Rows:
    """Rows of every form over any layout. ``sizes``: see `layouts.SIZES`, a repeated one is drawn more often."""
    size = draw(st.sampled_from(sizes))
    layout = draw(layouts(tp_size, size, min_vocab=min_vocab, min_filled=min_filled))
    return Rows(
        layout=layout,
        dtype=draw(st.sampled_from(dtypes)),
        batch=draw(batches(layout.vocab_size, size)) if batch is None else batch,
        seed=draw(SEEDS),
        forms=forms,
        padding=draw(paddings.kinds),
        table=None if table_kinds is None else draw(tables.tables(table_kinds)),
        winners=winners,
    )


# -- ties -------------------------------------------------------------------------------------------------------------

SPREADS = {"within": 1, "two": 2, "three": 3, "all": 0}


@dataclass(frozen=True)
class TieRows:
    """One call whose rows all tie: inside one shard, across two or three shards, or across all that hold columns."""

    layout: Layout
    dtype: str
    batch: int
    seed: int
    where: str
    padding: str = "equal"

    def tied_columns(self, rng: np.random.Generator) -> np.ndarray:
        """``(batch, k)`` columns of each row's tied set, some of them named twice."""
        bounds = np.array([bound for bound in self.layout.bounds if bound[1] - bound[0] > (self.where == "within")])
        count = SPREADS[self.where] or len(bounds)
        shards = rng.permuted(np.tile(np.arange(len(bounds)), (self.batch, 1)), axis=1)[:, :count]
        start = bounds[shards, 0]
        width = bounds[shards, 1] - start

        def place() -> np.ndarray:
            """The shard's first or last column, or any."""
            any_place = rng.integers(0, width)
            which = rng.integers(0, 4, width.shape)
            return np.where(which == 0, 0, np.where(which == 1, width - 1, any_place))

        first = place()
        # Another one, where the shard has more than one column.
        second = (first + 1 + rng.integers(0, np.maximum(width - 1, 1))) % width
        if self.where != "within":
            second = np.where(rng.integers(0, 2, width.shape) == 0, first, second)
        return np.concatenate([start + first, start + second, start + place()], axis=1)

    def expand(self) -> Case:
        rng = np.random.default_rng(self.seed)
        tied = self.tied_columns(rng)
        greatest = values.from_palettes(rng, (*values.PALETTES, "normal", "normal"), self.dtype, self.batch)
        greatest[greatest == bits.neg_inf(self.dtype)] = bits.INFINITY[self.dtype]
        logits = np.empty((self.batch, self.layout.vocab_size), bits.STORAGE[self.dtype])
        parts = rng.integers(0, 3, self.batch)
        for part in range(3):
            chosen = np.flatnonzero(parts == part)
            logits[chosen] = values.contest_on(rng, self.layout, self.dtype, tied[chosen], greatest[chosen])
        return Case((Call(self.layout, self.dtype, logits, paddings.patterns(self.padding, self.dtype, logits)),))


@functools.cache
@st.composite
def tie_rows(draw: st.DrawFn, tp_size: int, where: str) -> TieRows:
    """Rows that tie ``where``: within, two, three or all."""
    size = draw(st.sampled_from(("small", "edges", "small", "edges", "small", "real")))
    filled = max(1, SPREADS[where] or 1)
    # A tie inside a shard needs one with two columns: more columns than shards make sure of it.
    layout = draw(layouts(tp_size, size, min_vocab=tp_size + 1 if where == "within" else filled, min_filled=filled))
    return TieRows(
        layout,
        draw(st.sampled_from(bits.DTYPES)),
        draw(batches(layout.vocab_size, size)),
        draw(SEEDS),
        where,
        draw(paddings.kinds),
    )


# -- padding ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Padded:
    """The same rows beside padding of every kind, one call a kind."""

    rows: Rows

    def expand(self) -> Case:
        whole = self.rows.call()
        kinds = [paddings.patterns(kind, whole.dtype, whole.logits) for kind in paddings.KINDS]
        return Case(tuple(replace(whole, padding=patterns) for patterns in kinds))


@functools.cache
@st.composite
def padded_rows(
    draw: st.DrawFn, tp_size: int, sizes: tuple[str, ...] = ("small",), forms: tuple[str, ...] = values.FORMS
) -> Rows:
    """Rows over a layout that has padding on at least one rank."""
    drawn = draw(rows(tp_size, sizes, forms=forms))
    return replace(
        drawn, batch=min(drawn.batch, 1024), layout=with_padding(drawn.layout, draw(st.sampled_from((1, 3, 8))))
    )


def padded(tp_size: int) -> st.SearchStrategy[Padded]:
    return padded_rows(tp_size).map(Padded)


# -- ranks that see different things ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lopsided:
    """Calls in which one rank holds the winner of every row, and the same value in all of them: +inf, NaN, zero ...

    A rank that takes what it alone sees for what all see skips a collective. Mixed rows and no rows come as well.
    """

    rows: Rows

    def expand(self) -> Case:
        rng = np.random.default_rng(self.rows.seed)
        mixed = self.rows.call()
        dtype = mixed.dtype
        calls = [mixed]
        for pattern in (bits.INFINITY[dtype], bits.NAN[dtype], bits.INFINITY[dtype] - 1, 0):
            start, end = rng.choice([bound for bound in mixed.layout.bounds if bound[1] > bound[0]])
            tied = rng.integers(start, end, (mixed.batch, 2))
            greatest = np.full(mixed.batch, pattern, bits.STORAGE[dtype])
            logits = values.contest_on(rng, mixed.layout, dtype, tied, greatest)
            calls.append(replace(mixed, logits=logits))
        return Case((*calls, mixed.rows(slice(0, 1)), mixed.rows(slice(0))))


@functools.cache
@st.composite
def lopsided(draw: st.DrawFn, tp_size: int) -> Lopsided:
    drawn = draw(rows(tp_size, ("small",), min_filled=draw(st.sampled_from((1, min(2, tp_size))))))
    return Lopsided(replace(drawn, batch=min(max(drawn.batch, 1), 512)))


# -- several calls ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Calls:
    """Calls one after the other: what a path keeps from one of them shows in a later one."""

    calls: tuple[Rows, ...]

    def expand(self) -> Case:
        return Case(tuple(rows.call() for rows in self.calls))


@functools.cache
@st.composite
def calls(draw: st.DrawFn, tp_size: int, sizes: tuple[str, ...] = ("small", "small", "edges")) -> Calls:
    """Two to five calls that differ in batch, layout, dtype or table; some have the batch of an earlier one."""
    drawn: list[Rows] = []
    for index in range(draw(st.integers(3, 4))):
        earlier = drawn[draw(st.integers(0, index - 1))] if index else None
        change = draw(st.sampled_from(("values", "batch", "all", "none"))) if earlier else "all"
        if earlier is None or change == "all":
            table_kinds = draw(st.sampled_from((None, tables.RISING)))
            drawn.append(draw(rows(tp_size, sizes, table_kinds=table_kinds)))
        elif change == "batch":
            # Larger to smaller and back: buffers that grow to the greatest batch keep its rows.
            other = draw(st.sampled_from((earlier.batch // 2, 1, 0, min(MOST_ROWS, 2 * earlier.batch + 1), 2, 3)))
            drawn.append(replace(earlier, batch=other, seed=draw(SEEDS)))
        elif change == "values":
            drawn.append(replace(earlier, seed=draw(SEEDS)))
        else:
            drawn.append(earlier)
    return Calls(tuple(drawn))


@functools.cache
@st.composite
def tables_in_turn(draw: st.DrawFn, tp_size: int) -> Calls:
    """The same rows under two tables of the same length, without one, and under the first again."""
    first = draw(rows(tp_size, ("small",), table_kinds=tables.RISING, min_vocab=2))
    second = replace(first, table=draw(tables.tables(("shifted", "gaps", "dense"))))
    return Calls((first, second, replace(first, table=None), first))


@functools.cache
@st.composite
def replayed(draw: st.DrawFn, tp_size: int, table_kinds: tuple[str, ...] | None = None) -> Calls:
    """Calls of one shape and other values, the first ones again at the end: what a captured graph is replayed on."""
    first = draw(rows(tp_size, ("small", "edges"), table_kinds=table_kinds))
    first = replace(first, batch=max(first.batch, 1))
    return Calls((first, *(replace(first, seed=draw(SEEDS)) for _ in range(2)), first))


# -- the same rows in another arrangement -----------------------------------------------------------------------------

ARRANGEMENTS = ("permuted", "split", "joined", "interleaved", "one by one")


@dataclass(frozen=True)
class Rearranged:
    """One batch of rows, and the same rows in other orders, parts or company, as calls of one case."""

    rows: Rows
    how: str
    seed: int

    def expand(self) -> Case:
        rng = np.random.default_rng(self.seed)
        whole = self.rows.call()
        batch = whole.batch
        if self.how == "permuted":
            orders = [np.arange(batch), rng.permutation(batch), np.arange(batch)[::-1]]
        elif self.how == "split":
            cuts = np.sort(rng.integers(0, batch + 1, 2))
            orders = [np.arange(batch), *np.split(np.arange(batch), cuts)]
        elif self.how == "joined":
            half = np.arange(batch // 2)
            orders = [half, np.arange(batch), np.concatenate([np.arange(batch), half]), np.repeat(half, 2)]
        elif self.how == "one by one":
            orders = [np.arange(batch), *(np.array([row]) for row in rng.integers(0, batch, 6) if batch)]
        else:
            other = replace(self.rows, seed=self.seed, batch=batch // 2 + 1).call()
            same_size = replace(self.rows, seed=self.seed + 1).call()
            return Case((whole, other, whole, same_size, whole))
        return Case(tuple(whole.rows(order) for order in orders))


@functools.cache
@st.composite
def rearranged(draw: st.DrawFn, tp_size: int, arrangements: tuple[str, ...] = ARRANGEMENTS) -> Rearranged:
    drawn = draw(rows(tp_size, ("small", "edges"), table_kinds=draw(st.sampled_from((None, tables.RISING)))))
    # A batch of one has no other arrangement.
    return Rearranged(replace(drawn, batch=max(drawn.batch, 5)), draw(st.sampled_from(arrangements)), draw(SEEDS))


@dataclass(frozen=True)
class Relabelled:
    """The same rows in other values of the same order, in every dtype, as calls of one case.

    ``close``: all values of the batch one ulp apart, at any place of the dtype's range. ``spread``: random values.
    ``subnormal``: one ulp apart around zero. An argmax reads the order alone, so tokens stay.
    """

    rows: Rows
    changes: tuple[str, ...]
    seed: int

    def expand(self) -> Case:
        rng = np.random.default_rng(self.seed)
        first = self.rows.call()
        # Equal values, both zeros and all NaNs are one class; a batch-wide order keeps that of every row.
        classes, place = np.unique(values.order(first.logits, first.dtype), return_inverse=True)
        place = place.reshape(first.logits.shape)
        has_nan = bool(len(classes)) and int(classes[-1]) > bits.INFINITY[first.dtype]
        dtypes = [first.dtype, *bits.DTYPES]
        made = [first]
        for change, dtype in zip(self.changes, np.resize(rng.permutation(dtypes), len(self.changes)), strict=True):
            ordinals = _rising_ordinals(rng, change, str(dtype), len(classes) - has_nan)
            if ordinals is None:
                continue  # more values than the dtype has
            patterns = bits.from_ordinal(ordinals, str(dtype))
            if has_nan:
                patterns = np.append(patterns, bits.STORAGE[str(dtype)](bits.NAN[str(dtype)]))
            logits = values.spell(rng, patterns[place], str(dtype))
            pads = paddings.patterns(self.rows.padding, str(dtype), logits)
            made.append(replace(first, dtype=str(dtype), logits=logits, padding=pads))
        return Case(tuple(made))


def _rising_ordinals(rng: np.random.Generator, change: str, dtype: str, count: int) -> np.ndarray | None:
    """``count`` strictly rising ordinals of numbers of the dtype, infinities included; None if it has fewer."""
    inf = bits.INFINITY[dtype]
    if count > 2 * inf + 1:
        return None
    if change == "subnormal" or (change == "close" and count > inf):
        first = int(np.clip(-(count // 2), -inf, inf - count + 1))
    elif change == "close":
        first = int(rng.integers(-inf, inf - count + 2))
    else:
        if dtype != "float32":
            return np.sort(rng.choice(2 * inf + 1, count, replace=False)) - inf
        drawn = np.unique(rng.integers(-inf, inf + 1, 2 * count + 8))
        return np.sort(rng.choice(drawn, count, replace=False))
    return first + np.arange(count)


@functools.cache
@st.composite
def relabelled(draw: st.DrawFn, tp_size: int) -> Relabelled:
    """Without a table: under one, a row that is all -inf has a rule of its own."""
    drawn = draw(rows(tp_size, ("small", "small", "edges")))
    changes = draw(st.sampled_from((("close", "spread"), ("subnormal", "close"), ("spread", "subnormal"))))
    batch = min(drawn.batch, _MOST_RELABELLED // drawn.layout.vocab_size)  # values are sorted
    return Relabelled(replace(drawn, batch=batch), changes, draw(SEEDS))


# -- the same rows over other shards ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Resharded:
    """The same rows over other layouts: ``over`` another tp_size, or over several splits in one case."""

    rows: Rows
    styles: tuple[str, ...]
    seed: int

    def over(self, tp_size: int) -> Case:
        whole = self.rows.call()
        vocab_size = self.rows.layout.vocab_size
        return Case((replace(whole, layout=split(vocab_size, tp_size, self.styles[0], self.seed)),))

    def expand(self) -> Case:
        """All splits padded to one width: what a path keeps by the shape of its input is wrong for the next."""
        whole = self.rows.call()
        size = (self.rows.layout.vocab_size, self.rows.layout.tp_size)
        cuts = [self.rows.layout, *(split(*size, style, self.seed + n) for n, style in enumerate(self.styles))]
        width = max(layout.padded_size for layout in cuts)
        return Case(tuple(replace(whole, layout=Layout(layout.bounds, width)) for layout in cuts))


@functools.cache
@st.composite
def resharded(draw: st.DrawFn, tp_size: int) -> Resharded:
    table_kinds = draw(st.sampled_from((None, tables.RISING)))
    drawn = draw(rows(tp_size, ("small", "edges"), table_kinds=table_kinds, min_vocab=min(tp_size, 4)))
    styles = draw(st.permutations(("uneven", "engine", "empty", "even")))
    return Resharded(drawn, tuple(styles), draw(SEEDS))


# -- ids past what number formats hold --------------------------------------------------------------------------------


def far_targets(tp_size: int, kind: str) -> st.SearchStrategy[Rows]:
    """A few rows under a table of `tables.FAR`; the reference's row is as long as the highest target."""
    batch = {"beyond int16": 16, "beyond float32": 2}[kind]
    dtypes = ("bfloat16", "float16")
    return rows(tp_size, ("small",), forms=("contest",), dtypes=dtypes, table_kinds=(kind,), batch=batch, min_vocab=2)


@dataclass(frozen=True)
class BeyondFloat32:
    """One row over a vocabulary past 2**24, whose greatest value is at an id that float32 has no number for."""

    tp_size: int
    dtype: str
    seed: int

    def expand(self) -> Case:
        rng = np.random.default_rng(self.seed)
        vocab_size = 2**24 + 2 + 2 * int(rng.integers(1, 9))
        sizes = np.full(self.tp_size, vocab_size // self.tp_size)
        sizes[0] += vocab_size - sizes.sum()
        low, high = bits.encode(np.array([-1.0, 1.5]), self.dtype)
        logits = np.full((1, vocab_size), low, bits.STORAGE[self.dtype])
        logits[0, vocab_size - 1 :: -2][: int(rng.integers(1, 3))] = high
        return Case((Call(layout_from_sizes(sizes.tolist()), self.dtype, logits, (int(high),)),))


def beyond_float32(tp_size: int) -> st.SearchStrategy[BeyondFloat32]:
    return st.builds(BeyondFloat32, st.just(tp_size), st.sampled_from(("bfloat16", "float16")), SEEDS)
