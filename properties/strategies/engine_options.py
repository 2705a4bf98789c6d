"""Recipes for live engines: the options their classes are built with, and hidden states whose logits are chosen.

A hidden state with a single 1 gives a column of the weights: so the rows of logits are given exactly, ties, NaNs and
neighbours included, and yet come from the engine's own projection. Random states and weights are drawn beside them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from refimpl import bits
from refimpl.engine_case import EngineCase, EngineOptions
from refimpl.vocab import d2t as tables
from refimpl.vocab.layouts import padded_layout

# Of a top-k, beside those of the argmax; tables are none of its matters.
TOP_K_DEPARTURES = ("k-beyond-shard", "k-beyond-vocabulary")

# What lies outside the supported use, and the feature of the engine that it takes.
DEPARTURES = {
    "table-order": "table",
    "scale": "scale",
    "empty-batch": None,
    "three-dimensional": None,
    "smaller-processor": "processor_vocabulary",
    "larger-processor": "processor_vocabulary",
    "added-vocabulary": "added_vocabulary",
    "logits-as-input": "logits_as_input",
}
_VOCABULARIES = (1, 2, 3, 5, 8, 10, 31, 64, 65, 130, 257)
_BATCHES = (1, 1, 2, 3, 8, 33)
_SCALES = (0.5, 1 / 3, 0.1, 3.0, 24.0, 1e-3)
_CAPS = (30.0, 1.0, 5.0)
_CELLS = 1 << 15


@dataclass(frozen=True)
class Engine:
    """What a strategy has to know of the engine under test."""

    name: str
    features: frozenset[str]
    tp_size: int


@st.composite
def engine_cases(draw: st.DrawFn, engine: Engine, supported: bool, tables_too: bool = True) -> EngineCase:
    """``supported``: rising table or none, positive scale, a batch of one or more, matching sizes; else one departure
    from that, or two."""
    if not tables_too:
        engine = replace(engine, features=engine.features - {"table"})
    departures: set[str | None] = set()
    if not supported:
        possible = [name for name, feature in DEPARTURES.items() if feature is None or feature in engine.features]
        departures = {draw(st.sampled_from(possible)), draw(st.sampled_from((*possible, *[None] * len(possible))))}

    def either(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    def having(feature: str, *values: Any) -> Any:
        """One of the values, where the engine has the feature, or None."""
        return either(None, None, *values) if feature in engine.features else None

    # One id has one order, and no smaller processor.
    vocab_size = either(*_VOCABULARIES[1 if departures & {"table-order", "smaller-processor"} else 0 :])
    options: dict[str, Any] = {"vocab_size": vocab_size, "padding_size": _padding(draw, engine, vocab_size)}
    options["dtype"] = either(*bits.DTYPES)
    head_dtype = having("head_dtype", *bits.DTYPES)
    options["head_dtype"] = None if head_dtype == options["dtype"] else head_dtype
    options["scale"] = having("scale", *_SCALES) or 1.0
    options["soft_cap"] = having("soft_cap", *_CAPS)
    if "scale" in departures:
        options["scale"] = either(-1.0, -0.5, 0.0)
    if "added-vocabulary" in departures:
        options["num_added"] = either(1, 2, 5, engine.tp_size)
    if "larger-processor" in departures:
        padded = -(-vocab_size // options["padding_size"]) * options["padding_size"]
        options["processor_vocab_size"] = either(vocab_size + 1, padded + 1, 2 * padded)
    elif "smaller-processor" in departures:
        options["processor_vocab_size"] = either(1, vocab_size - 1, -(-vocab_size // 2))
    options["logits_as_input"] = "logits-as-input" in departures
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    table = either(None, "rising") if "table" in engine.features else None
    d2t = None
    if table is not None or "table-order" in departures:
        options["target_vocab_size"] = vocab_size + either(0, 1, 7, 100)
        make = either(tables.frequency_table, _permuted) if "table-order" in departures else tables.rising_table
        d2t = make(vocab_size, options["target_vocab_size"], rng)
    batch = min(either(*_BATCHES), max(1, _CELLS // vocab_size))
    weight, states, bias = _tensors(draw, rng, options, batch)
    if d2t is not None or "bias" not in engine.features:
        bias = None  # the mixin hands none on
    if "empty-batch" in departures:
        states = states[:0]
    if "logits-as-input" in departures:
        # Of a width that the lm_head takes as well, or of a hidden size of its own: an engine that projects logits of
        # many times that size writes beyond its output.
        size = 1 if vocab_size >= 8 and either(False, True, True) else vocab_size
        states = _small(rng, (len(states), vocab_size), options["dtype"])
        weight = _small(rng, (len(weight), size), options["dtype"])
    if "three-dimensional" in departures:
        outer = either(1, 2, 3)
        states = np.resize(states, (outer, max(1, len(states) // outer) if len(states) else 0, states.shape[1]))
    return EngineCase(
        engine.name, engine.tp_size, EngineOptions(**options), weight, np.ascontiguousarray(states), bias, d2t
    )


@st.composite
def topk_cases(draw: st.DrawFn, engine: Engine) -> EngineCase:
    """A top-k in the supported use, or with a departure: k of 1, small, as wide as a shard, beyond it, beyond all."""

    def either(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    beyond = either(None, None, None, None, *TOP_K_DEPARTURES)
    case: EngineCase = draw(engine_cases(engine, beyond is not None or either(True, False), tables_too=False))
    vocab_size, padded = case.options.vocab_size, case.layout.padded_size
    fewest = min(end - start for start, end in case.layout.bounds)
    k = min(either(1, 2, 3, 5, 8, 16, fewest + 1, padded, vocab_size - 1, vocab_size), padded, vocab_size)
    if beyond == "k-beyond-shard":
        k = min(either(padded + 1, vocab_size), vocab_size)
    elif beyond == "k-beyond-vocabulary":
        k = vocab_size + either(1, 2, padded)
    log_probs = "log_probs" in engine.features and either(False, False, True)
    return case.changed(k=max(1, k), log_probs=log_probs)


def _padding(draw: st.DrawFn, engine: Engine, vocab_size: int) -> int:
    """A unit of padding by which the engine can cut this vocabulary."""
    sizes = [64]
    if "padding" in engine.features:
        sizes += [engine.tp_size, 2 * engine.tp_size, 64 * engine.tp_size]
    fitting = [size for size in sizes if (-(-vocab_size // size) * size) % engine.tp_size == 0]
    size = draw(st.sampled_from(fitting or [64]))
    padded_layout(vocab_size, engine.tp_size, size)
    return size


def _permuted(draft_vocab_size: int, target_vocab_size: int, rng: np.random.Generator) -> np.ndarray:
    return tables.offsets(rng.permutation(target_vocab_size)[:draft_vocab_size])


def _tensors(
    draw: st.DrawFn, rng: np.random.Generator, options: dict[str, Any], batch: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Weight, hidden states and a bias, as patterns."""
    dtype, rows = options["dtype"], options["vocab_size"] + options.get("num_added", 0)
    form = draw(st.sampled_from(("given", "given", "random")))
    if form == "given":
        palette = draw(st.sampled_from(tuple(_PALETTES)))
        logits = _PALETTES[palette](rng, (batch, rows), dtype)
        size = -(-batch // 8) * 8 if draw(st.booleans()) else batch
        weight = np.zeros((rows, size), bits.STORAGE[dtype])
        weight[:, :batch] = logits.T
        states = bits.encode(np.eye(batch, size), dtype)
    else:
        size = draw(st.sampled_from((1, 4, 32, 64, 96)))
        weight = bits.encode(rng.standard_normal((rows, size)), dtype)
        states = bits.encode(rng.standard_normal((batch, size)) * 2.0 ** rng.integers(-3, 4), dtype)
    bias = bits.encode(rng.choice((0.0, 0.5, -0.5, 2**-9), rows), dtype) if draw(st.booleans()) else None
    return weight, states, bias


def _small(rng: np.random.Generator, shape: tuple[int, int], dtype: str) -> np.ndarray:
    return bits.encode(rng.integers(-2, 3, shape).astype(np.float64), dtype)


def _negative(rng: np.random.Generator, shape: tuple[int, int], dtype: str) -> np.ndarray:
    return bits.encode(-rng.integers(1, 4, shape).astype(np.float64), dtype)


def _neighbours(rng: np.random.Generator, shape: tuple[int, int], dtype: str) -> np.ndarray:
    """Values one step of the dtype apart, which a cap or a scale may make equal."""
    start = int(bits.ordinal(bits.encode(np.array([rng.choice((0.75, 1.5, 4.0, 29.0))]), dtype), dtype)[0])
    return bits.from_ordinal(start + rng.integers(0, 4, shape), dtype)


def _large(rng: np.random.Generator, shape: tuple[int, int], dtype: str) -> np.ndarray:
    """Where a soft cap saturates."""
    return bits.encode(rng.integers(90, 140, shape).astype(np.float64), dtype)


def _special(rng: np.random.Generator, shape: tuple[int, int], dtype: str) -> np.ndarray:
    """Both zeros, infinities, NaNs, the least and the greatest."""
    marks = bits.landmarks(dtype)
    return rng.choice(np.concatenate([marks, marks[:3]]), shape)


def _lowest(rng: np.random.Generator, shape: tuple[int, int], dtype: str) -> np.ndarray:
    """Rows of -inf with little else."""
    patterns = np.full(shape, bits.neg_inf(dtype), bits.STORAGE[dtype])
    patterns[rng.random(shape) < 0.1] = bits.encode(np.array(-3.0), dtype)
    return patterns


_PALETTES = {
    "small": _small,
    "negative": _negative,
    "neighbours": _neighbours,
    "large": _large,
    "special": _special,
    "lowest": _lowest,
}
