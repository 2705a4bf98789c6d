"""What stands in padding columns: whatever wins if a path forgets that they are padding."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from refimpl import bits

# A path may leave padding unmasked, mask it with a value that is not low enough, or mask the wrong columns; and what a
# forgotten mask lets through differs with what is there: one kind a case, or all of them dealt out in turn.
KINDS = ("mixed", "above", "nan", "inf", "equal", "max", "zero", "lowest", "-inf")
_MOST_PATTERNS = 16

kinds = st.sampled_from(KINDS)


def patterns(kind: str, dtype: str, logits: np.ndarray) -> tuple[int, ...]:
    """Patterns to deal out over the padding cells of a batch of ``logits`` patterns.

    ``above``: one ulp over the greatest number. ``equal``: the rows' own maxima, which tie with them. ``max`` and
    ``lowest``: the greatest and lowest finite values.
    """
    inf, nan, sign = bits.INFINITY[dtype], bits.NAN[dtype], bits.sign_bit(dtype)
    fixed = {
        "nan": (nan, nan | sign, nan | 1),
        "inf": (inf,),
        "max": (inf - 1,),
        "zero": (0, sign),
        "lowest": (sign | (inf - 1),),
        "-inf": (sign | inf,),
    }
    if kind in fixed:
        return fixed[kind]
    tops = _row_maxima(dtype, logits)
    if kind == "equal":
        return tops
    highest = int(bits.ordinal(np.array(tops, bits.STORAGE[dtype]), dtype).max())
    above = int(bits.from_ordinal(np.array(min(highest + 1, inf)), dtype))
    if kind == "above":
        return (above,)
    return (above, nan, 0, inf, *tops[:2], inf - 1)


def _row_maxima(dtype: str, logits: np.ndarray) -> tuple[int, ...]:
    """The greatest numbers of the first rows, NaNs aside; 1.0 where there is none."""
    some = logits[:_MOST_PATTERNS]
    order = np.where(bits.is_nan(some, dtype), np.iinfo(np.int64).min, bits.ordinal(some, dtype))
    if not len(some):
        return (int(bits.encode(np.array(1.0), dtype)),)
    tops = some[np.arange(len(some)), order.argmax(axis=1)]
    tops = np.unique(tops[~bits.is_nan(tops, dtype)])
    return tuple(int(top) for top in tops) or (int(bits.encode(np.array(1.0), dtype)),)
