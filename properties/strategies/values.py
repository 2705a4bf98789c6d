"""Values of rows, as bit patterns: what stands behind a winner, what wins, and by how little.

A row is of one `FORMS` each, and a batch holds rows of all forms asked for, so that one example shows many things. The
main form is the contest: known columns tie, others stand one ulp or one rounding step below them.
"""

from __future__ import annotations

import functools

import numpy as np

from properties.strategies.layouts import edge_columns
from refimpl import bits
from refimpl.vocab.layouts import Layout

# Above this many cells random numbers are repeated: drawing them would cost more than running the case.
_MOST_DRAWN = 1 << 16
# Bits of a float32 that bfloat16 and float16 do not have, and of a float16 that bfloat16 does not have.
_ROUNDED_AWAY = {"float32": 16, "float16": 3, "bfloat16": 2}


# -- the order of values ----------------------------------------------------------------------------------------------


def order(patterns: np.ndarray, dtype: str) -> np.ndarray:
    """int64 in the order in which values win: both zeros alike, every NaN alike and above +inf."""
    ordinals = bits.ordinal(patterns, dtype)
    ordinals[bits.is_nan(patterns, dtype)] = bits.INFINITY[dtype] + 1
    return ordinals


def below(patterns: np.ndarray, steps: np.ndarray | int, dtype: str) -> np.ndarray:
    """Numbers ``steps`` places of `order` below, -inf where there are not so many."""
    lowest = -bits.INFINITY[dtype]
    return bits.from_ordinal(np.maximum(order(patterns, dtype) - steps, lowest), dtype)


def spell(rng: np.random.Generator, patterns: np.ndarray, dtype: str) -> np.ndarray:
    """The same values in other patterns: a zero of either sign, a NaN of any sign and payload."""
    sign = rng.integers(0, 2, patterns.shape).astype(bits.STORAGE[dtype]) << bits.STORAGE[dtype](bits.WIDTH[dtype] - 1)
    magnitude = patterns & bits.STORAGE[dtype](bits.sign_bit(dtype) - 1)
    payload = rng.integers(bits.INFINITY[dtype] + 1, bits.sign_bit(dtype), patterns.shape).astype(bits.STORAGE[dtype])
    plain = bits.STORAGE[dtype](bits.NAN[dtype])
    nans = np.where(rng.integers(0, 2, patterns.shape) == 0, plain, payload) | sign
    spelled = np.where(magnitude == 0, magnitude | sign, patterns)
    return np.where(magnitude > bits.INFINITY[dtype], nans, spelled).astype(bits.STORAGE[dtype])


# -- palettes ---------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=32)
def palette(name: str, dtype: str) -> np.ndarray:
    """Bit patterns of one kind, every one a value that a row may hold."""
    inf, sign = bits.INFINITY[dtype], bits.sign_bit(dtype)
    one = int(bits.encode(np.array(1.0), dtype))
    normal = inf & -inf  # the least exponent that is not a subnormal's
    if name == "landmarks":
        return bits.landmarks(dtype)
    if name == "zeros":
        positive = [0]
    elif name == "subnormals":
        positive = [0, 1, 2, 3, normal // 2, normal - 2, normal - 1, normal, normal + 1]
    elif name == "extremes":
        positive = [inf - 3, inf - 2, inf - 1, inf]
    elif name == "nans":
        positive = [inf + 1, bits.NAN[dtype], bits.NAN[dtype] | 1, sign - 1]
    elif name == "ones":
        positive = [*range(one - 4, one + 5)]
    else:  # steps: where a narrower format of values begins to round
        values = [2.0**-25, 2.0**-24, 2.0**-14, 255.0, 256.0, 257.0, 258.0, 2047.0, 2048.0, 2049.0, 65504.0, 65519.0]
        values += [65520.0, 65536.0, 104.0, 1e4, 1.0e5]
        found = {int(bits.encode(np.array(value), dtype)) for value in values}
        positive = [step + near for step in found for near in (-1, 0, 1) if 0 <= step + near <= inf]
    unique = np.unique(np.array(positive, np.int64))
    return np.concatenate([unique, unique | sign]).astype(bits.STORAGE[dtype])


PALETTES = ("landmarks", "zeros", "subnormals", "extremes", "nans", "ones", "steps")


def from_palettes(rng: np.random.Generator, names: tuple[str, ...], dtype: str, rows: int) -> np.ndarray:
    """One pattern a row, from palettes of the given names or ``normal`` ones, all names equally often."""
    drawn = bits.encode(rng.normal(0.0, 4.0, rows), dtype)
    names_of_rows = rng.integers(0, len(names), rows)
    for index, name in enumerate(names):
        if name != "normal":
            chosen = np.flatnonzero(names_of_rows == index)
            drawn[chosen] = rng.choice(palette(name, dtype), len(chosen))
    return drawn


# -- forms ------------------------------------------------------------------------------------------------------------


def _many(rng: np.random.Generator, rows: int, columns: int, draw: str, dtype: str) -> np.ndarray:
    """``(rows, columns)`` random patterns, each row another stretch of at most `_MOST_DRAWN` drawn ones."""
    count = min(rows * columns, _MOST_DRAWN)
    if draw == "normal":
        drawn = bits.encode(rng.normal(0.0, 3.0, count), dtype)
    elif draw == "negative":
        drawn = bits.encode(-np.abs(rng.normal(0.0, 3.0, count)) - 1e-3, dtype)
    elif draw == "bits":
        drawn = rng.integers(0, 1 << bits.WIDTH[dtype], count, dtype=bits.STORAGE[dtype])
    else:
        drawn = rng.choice(palette(draw, dtype), count)
    if count == rows * columns:
        return drawn.reshape(rows, columns)
    # An odd stride, so that rows do not begin at the same place of the drawn numbers.
    starts = rng.integers(0, count, rows)
    return drawn[(starts[:, None] + np.arange(columns)) % count]


FORMS = ("contest", "landmarks", "normal", "bits", "negative", "lowest", "constant", "sparse", "near")


def form_rows(
    rng: np.random.Generator, form: str, layout: Layout, dtype: str, rows: int, winners: tuple[str, ...] = ()
) -> np.ndarray:
    """``(rows, vocab_size)`` patterns of one form: of `FORMS`, or every cell from the palette of that name.

    ``winners``: the palettes that contests take their greatest value from.
    """
    columns = layout.vocab_size
    storage = bits.STORAGE[dtype]
    if form == "contest":
        return contests(rng, layout, dtype, rows, winners or ("landmarks", "normal", "ones", "steps", "subnormals"))
    if form in ("normal", "bits", "negative") or form in PALETTES:
        return _many(rng, rows, columns, form, dtype)
    if form == "constant":
        values = from_palettes(rng, ("landmarks", "normal"), dtype, rows)
        return spell(rng, np.repeat(values[:, None], columns, axis=1), dtype)
    if form == "near":
        # All within a few ulps of each other: every value of a narrower format is a tie.
        middle = from_palettes(rng, ("normal", "ones", "steps"), dtype, rows)
        steps = 1 << int(rng.integers(1, 5 if dtype != "float32" else 18))
        drawn = rng.integers(0, steps, (rows, min(columns, 4096)))[:, np.arange(columns) % 4096]
        return below(middle[:, None], drawn, dtype)
    neg_inf = bits.neg_inf(dtype)
    if form == "lowest":
        # Below any finite value that masks padding, and rows that are all -inf.
        few = np.array([neg_inf, neg_inf, neg_inf, neg_inf - 1, neg_inf - 2], storage)
        drawn = few[rng.integers(0, len(few), (rows, min(columns, 4096)))[:, np.arange(columns) % 4096]]
        drawn[rng.integers(0, 3, rows) == 0] = neg_inf
        return drawn
    assert form == "sparse"
    logits = np.full((rows, columns), neg_inf, storage)
    for _ in range(3):
        place = rng.integers(0, columns, rows)
        logits[np.arange(rows), place] = from_palettes(rng, ("landmarks", "normal"), dtype, rows)
    return logits


def mixed_rows(
    rng: np.random.Generator,
    forms: tuple[str, ...],
    layout: Layout,
    dtype: str,
    rows: int,
    winners: tuple[str, ...] = (),
) -> np.ndarray:
    """``(rows, vocab_size)`` patterns, every row of one of the forms, in no order."""
    logits = np.empty((rows, layout.vocab_size), bits.STORAGE[dtype])
    # As equal shares as can be: few rows show as many forms as they may.
    shares = rng.permutation(np.resize(rng.permutation(len(forms)), rows))
    for index, form in enumerate(forms):
        chosen = np.flatnonzero(shares == index)
        if len(chosen):
            logits[chosen] = form_rows(rng, form, layout, dtype, len(chosen), winners)
    return logits


# -- contests ---------------------------------------------------------------------------------------------------------


def pick_columns(rng: np.random.Generator, layout: Layout, rows: int) -> np.ndarray:
    """One column a row: any, or one of the edges of shards, blocks and id formats, the last column often."""
    edges = edge_columns(layout)
    any_column = rng.integers(0, layout.vocab_size, rows)
    edge = edges[rng.integers(0, len(edges), rows)]
    which = rng.integers(0, 8, rows)
    return np.where(which < 4, edge, np.where(which < 7, any_column, layout.vocab_size - 1))


def contests(rng: np.random.Generator, layout: Layout, dtype: str, rows: int, winners: tuple[str, ...]) -> np.ndarray:
    """Rows whose tied set is one to four columns, any further apart, with runners-up close below."""
    tied = np.stack([pick_columns(rng, layout, rows) for _ in range(4)], axis=1)
    count = rng.choice(4, rows, p=(0.4, 0.3, 0.15, 0.15))
    # Fewer than four: the first one again, which ties with itself.
    tied = np.where(np.arange(4) <= count[:, None], tied, tied[:, :1])
    return contest_on(rng, layout, dtype, tied, from_palettes(rng, winners, dtype, rows))


def contest_on(
    rng: np.random.Generator, layout: Layout, dtype: str, tied: np.ndarray, greatest: np.ndarray
) -> np.ndarray:
    """Rows whose tied set is given: columns ``(rows, k)`` (repeats allowed) and greatest value ``(rows,)``.

    A greatest value of -inf has nothing below it: such rows are all -inf and all tied.
    """
    rows, columns = len(tied), layout.vocab_size
    background = str(rng.choice(("normal", "negative", "bits", "landmarks", "-inf", "close")))
    if background == "-inf":
        logits = np.full((rows, columns), bits.neg_inf(dtype), bits.STORAGE[dtype])
    elif background == "close":
        logits = np.repeat(below(greatest, 1, dtype)[:, None], columns, axis=1)
    else:
        logits = _many(rng, rows, columns, background, dtype)
        too_high = order(logits, dtype) >= order(greatest, dtype)[:, None]
        in_rows = np.nonzero(too_high)[0]
        logits[too_high] = below(greatest[in_rows], 1 + in_rows % 3, dtype)
    every = np.arange(rows)
    for _ in range(2):
        # From one ulp below up to the last bit that a narrower format rounds away.
        steps = 1 << rng.integers(0, _ROUNDED_AWAY[dtype], rows)
        logits[every, pick_columns(rng, layout, rows)] = below(greatest, steps, dtype)
    logits[every[:, None], tied] = spell(rng, np.repeat(greatest[:, None], tied.shape[1], axis=1), dtype)
    return logits
