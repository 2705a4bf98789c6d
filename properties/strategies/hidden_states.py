"""Recipes for hidden states: what makes a head tie, overflow, underflow, or show what one of its answers leaves out.

Random hidden states are the least of it. A zero vector ties every column. A one-hot state makes the logits a column of
the weights, many of which are equal in 16 bits; a state along a row of the weights ties with the row's twins; one
between two rows sets these two against each other, next to equal.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from refimpl import bits
from refimpl.head_case import HeadCase
from refimpl.head_check import HeadChecker
from refimpl.vocab.layouts import Layout, uneven_layout

FORMS = (
    "normal",
    "toward",
    "zero",
    "one hot",
    "between",
    "difference",
    "toward, small",
    "tiny",
    "huge",
    "away",
    "mixed sizes",
)
SEEDS = st.integers(0, 2**32 - 1)
_SAMPLED = 96
_CELLS = 1 << 23
_MOST_ROWS = 60


@dataclass(frozen=True)
class HiddenStates:
    """Rows of every form through every projection of a head. ``cut``: engine, or uneven for shards of all sizes."""

    seed: int
    batch: int
    cut: str = "engine"
    forms: tuple[str, ...] = FORMS

    def cases(self, check: HeadChecker) -> list[HeadCase]:
        """One case a step, and for a head of several steps one beyond the last, which begins anew."""
        facts = check.facts
        rng = np.random.default_rng(self.seed)
        steps = range(facts.steps + 1) if facts.steps > 1 else range(1)
        return [
            HeadCase(facts.ref, self.layout(check), facts.dtype, self._states(check, rng, step), step) for step in steps
        ]

    def layout(self, check: HeadChecker) -> Layout:
        if self.cut == "engine" or check.facts.own_tokens:
            return check.layout
        return uneven_layout(check.facts.num_logits, check.tp_size)

    def _states(self, check: HeadChecker, rng: np.random.Generator, step: int) -> np.ndarray:
        facts = check.facts
        size = facts.input_size
        rows, gain = np.zeros((1, facts.hidden_size)), np.ones(facts.hidden_size)
        if facts.has_weights:
            rows, gain = check.rows(sampled_ids(facts.num_logits, check.layout), step % facts.steps)
        # A norm multiplies by its gain: what is to lie along a row is divided by it first.
        along = np.tile(unit(rows.astype(np.float64) / gain), (1, size // facts.hidden_size))
        shares = rng.permutation(np.resize(rng.permutation(len(self.forms)), self.batch))
        states = np.stack([state(rng, self.forms[share], along, size, facts.dtype) for share in shares])
        return bits.encode(states, facts.dtype)


def unit(rows: np.ndarray) -> np.ndarray:
    """Rows of mean square 1; zeros stay zeros."""
    size = np.sqrt((rows**2).mean(axis=-1, keepdims=True))
    return rows / np.where(size == 0, 1, size)


def state(rng: np.random.Generator, form: str, along: np.ndarray, size: int, dtype: str) -> np.ndarray:
    """One hidden state, float64 ``(size,)``. ``along``: some rows of the weights, of mean square 1."""
    first, second = along[rng.integers(0, len(along), 2)]
    largest = float(bits.decode(np.array([bits.INFINITY[dtype] - 1], bits.STORAGE[dtype]), dtype)[0])
    least = float(bits.decode(np.array([1], bits.STORAGE[dtype]), dtype)[0])
    if form == "normal":
        return rng.standard_normal(size) * 2.0 ** rng.integers(-3, 4)
    if form == "toward":
        return first * 2.0 ** rng.integers(-4, 3)
    if form == "away":  # against what all rows have in common: every logit is negative
        return -along.mean(axis=0) * 2.0 ** rng.integers(-1, 4)
    if form == "zero":
        return np.zeros(size) * rng.choice((-1.0, 1.0))
    if form == "one hot":
        values = np.zeros(size)
        values[rng.integers(0, size)] = rng.choice((1.0, -1.0, 0.5, 3.0, 24.0))
        return values
    if form == "between":
        return (first + second) * 2.0 ** rng.integers(-2, 2)
    if form == "difference":
        return (first - second) * 2.0 ** rng.integers(-2, 2)
    if form == "toward, small":
        return first * 2.0 ** -rng.integers(6, 14)
    if form == "tiny":
        return first * least * 2.0 ** rng.integers(0, 8)
    if form == "huge":
        return np.clip(first * largest / 2.0 ** rng.integers(0, 8), -largest, largest)
    assert form == "mixed sizes"
    return rng.standard_normal(size) * 2.0 ** rng.integers(-8, 8, size)


@functools.lru_cache(maxsize=8)
def sampled_ids(num_logits: int, layout: Layout) -> np.ndarray:
    """Ids at the edges of shards, and others: whose rows of the weights hidden states are made of."""
    edges = [edge for start, end in layout.bounds if end > start for edge in (start, end - 1)]
    others = np.random.default_rng(0).integers(0, num_logits, _SAMPLED)
    return np.unique(np.concatenate([np.array(edges, np.int64), others]))[:_SAMPLED]


@functools.cache
@st.composite
def hidden_states(draw: st.DrawFn, num_logits: int) -> HiddenStates:
    """As many rows as a wide vocabulary allows, at least one of each form."""
    most = max(len(FORMS), min(_MOST_ROWS, _CELLS // num_logits))
    return HiddenStates(draw(SEEDS), draw(st.sampled_from((most, most, most - 1))), draw(st.sampled_from(CUTS)))


CUTS = ("engine", "uneven", "engine")
