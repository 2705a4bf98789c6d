"""Top-k cases: rows of any recipe with a k, small, at the width of a shard, beyond it, or the whole vocabulary."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from properties.strategies import recipes, tables, values
from properties.strategies.layouts import split
from properties.strategies.recipes import Rows
from properties.strategies.tables import Table
from refimpl.topk.case import TopKCall, TopKCase

# A row is sorted, not scanned, by three opinions; few rows show as many orders as many do of maxima.
_MOST_VALUES = 1 << 13
# The order goes down to the k-th entry: forms with ties and near-ties at every depth come more often.
DEEP = ("constant", "near", "landmarks", "zeros", "steps", "ones", "lowest", "sparse", "contest", "normal", "negative")


@dataclass(frozen=True)
class TopKRows:
    """One or more calls over rows of a recipe. ``ks``: of each call, as `k_of` reads it."""

    rows: tuple[Rows, ...]
    ks: tuple[str | int, ...]

    def expand(self) -> TopKCase:
        return TopKCase(tuple(_call(rows, k) for rows, k in zip(self.rows, self.ks, strict=True)))


def _call(rows: Rows, k: str | int) -> TopKCall:
    call = rows.call()
    return TopKCall(call, k_of(k, [end - start for start, end in call.layout.bounds]))


def k_of(k: str | int, widths: list[int]) -> int:
    """A number as it is, cut to the vocabulary; or a word: widest, beyond (one more), most (all but one), all, over."""
    vocab_size, widest = sum(widths), max(widths)
    named = {"widest": widest, "beyond": widest + 1, "most": vocab_size - 1, "all": vocab_size, "over": vocab_size + 1}
    if isinstance(k, str):
        return vocab_size + 1 if k == "over" else min(max(named[k], 1), vocab_size)
    return min(k, vocab_size)


@functools.cache
@st.composite
def topk_rows(
    draw: st.DrawFn,
    tp_size: int,
    ks: tuple[str | int, ...] = (2, 5, 8, 1, 16, "widest", "beyond"),
    *,
    sizes: tuple[str, ...] = ("small", "small", "edges"),
    forms: tuple[str, ...] = DEEP,
    table_kinds: tuple[str, ...] | None = None,
    min_vocab: int = 1,
) -> TopKRows:
    drawn = draw(
        recipes.rows(tp_size, sizes, forms=forms, table_kinds=table_kinds, min_vocab=min_vocab, winners=values.PALETTES)
    )
    rows = replace(drawn, batch=min(drawn.batch, max(2, _MOST_VALUES // drawn.layout.vocab_size)))
    return TopKRows((rows,), (draw(st.sampled_from(ks)),))


@functools.cache
@st.composite
def in_turn(draw: st.DrawFn, tp_size: int) -> TopKRows:
    """Calls of other k, batches and tables: what a path keeps from one shows in the next."""
    (first,) = draw(topk_rows(tp_size, min_vocab=4)).rows
    second = replace(first, seed=draw(recipes.SEEDS), batch=first.batch // 2 + 1)
    third = replace(first, seed=draw(recipes.SEEDS), table=Table(draw(st.sampled_from(tables.RISING)), 7))
    ks: tuple[str | int, ...] = draw(st.sampled_from(((3, 3, 3, 3), (4, 2, 3, 4), (1, 4, 2, 1), (2, "all", 1, 2))))
    return TopKRows((first, second, third, first), ks)


@dataclass(frozen=True)
class Wider:
    """The same batch and k over a vocabulary, one 64 times as large, and a batch 8 times as large."""

    rows: Rows
    k: int

    def expand(self) -> TopKCase:
        vocab_size, tp_size = self.rows.layout.vocab_size, self.rows.layout.tp_size
        narrow = replace(self.rows, layout=split(vocab_size, tp_size, "even"))
        wide = replace(self.rows, layout=split(64 * vocab_size, tp_size, "even"))
        batch = self.rows.batch
        shapes = ((narrow, batch), (wide, batch), (narrow, 8 * batch), (wide, 8 * batch))
        return TopKCase(tuple(TopKCall(replace(rows, batch=size).call(), self.k) for rows, size in shapes))


@functools.cache
@st.composite
def wider(draw: st.DrawFn, tp_size: int) -> Wider:
    k = draw(st.integers(1, 6))
    drawn = draw(recipes.rows(tp_size, ("small",), forms=("normal", "contest"), min_vocab=k * tp_size, batch=3))
    return Wider(drawn, k)
