"""Logits as bit patterns: the only form in which NaN payloads, signed zeros and bfloat16 survive a journey.

A logits array is unsigned: uint32 for float32, uint16 for bfloat16 and float16. `ordinal` maps patterns to integers
in the order of their values, which is how neighbours one ulp apart and order-preserving changes are made.
"""

from __future__ import annotations

import numpy as np

DTYPES = ("float32", "bfloat16", "float16")
STORAGE: dict[str, type[np.unsignedinteger]] = {"float32": np.uint32, "bfloat16": np.uint16, "float16": np.uint16}
WIDTH = {"float32": 32, "bfloat16": 16, "float16": 16}
INFINITY = {"float32": 0x7F800000, "bfloat16": 0x7F80, "float16": 0x7C00}
NAN = {"float32": 0x7FC00000, "bfloat16": 0x7FC0, "float16": 0x7E00}


def sign_bit(dtype: str) -> int:
    return 1 << (WIDTH[dtype] - 1)


def neg_inf(dtype: str) -> int:
    return sign_bit(dtype) | INFINITY[dtype]


def decode(bits: np.ndarray, dtype: str, as_type: type = np.float64) -> np.ndarray:
    """Bit patterns to values; float32 and float64 both hold every value of the three dtypes exactly."""
    if dtype == "bfloat16":
        wide = bits.astype(np.uint32)
        wide <<= 16
        values = wide.view(np.float32)
    elif dtype == "float16":
        values = np.ascontiguousarray(bits).view(np.float16)
    else:
        values = np.ascontiguousarray(bits).view(np.float32)
    with np.errstate(invalid="ignore"):  # widening a signalling NaN is no event here
        return values.astype(as_type, copy=False)


def encode(values: np.ndarray, dtype: str) -> np.ndarray:
    """Values to bit patterns, rounded to nearest even; a NaN becomes the dtype's plain quiet one."""
    values = np.asarray(values, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype == "float16":
            bits = values.astype(np.float16).view(np.uint16)
        else:
            bits = values.astype(np.float32).view(np.uint32)
            if dtype == "bfloat16":
                bits = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), STORAGE[dtype](NAN[dtype]), bits).astype(STORAGE[dtype])


def ordinal(bits: np.ndarray, dtype: str) -> np.ndarray:
    """int64 ordinals in the order of the values: both zeros give 0, NaNs lie beyond the infinities of their sign."""
    magnitude = (bits & STORAGE[dtype](sign_bit(dtype) - 1)).astype(np.int64)
    return np.where(bits & STORAGE[dtype](sign_bit(dtype)), -magnitude, magnitude)


def from_ordinal(ordinals: np.ndarray, dtype: str) -> np.ndarray:
    ordinals = np.asarray(ordinals, dtype=np.int64)
    return np.where(ordinals < 0, sign_bit(dtype) - ordinals, ordinals).astype(STORAGE[dtype])


def is_nan(bits: np.ndarray, dtype: str) -> np.ndarray:
    return (bits & STORAGE[dtype](sign_bit(dtype) - 1)) > STORAGE[dtype](INFINITY[dtype])


def landmarks(dtype: str) -> np.ndarray:
    """About 50 patterns at which number formats turn: zeros, ones, extremes, subnormals, powers of two, inf, NaN."""
    inf, one = INFINITY[dtype], int(encode(np.array(1.0), dtype))
    normal = {"float32": 1 << 23, "bfloat16": 1 << 7, "float16": 1 << 10}[dtype]
    positive = [0, 1, 2, normal - 1, normal, normal + 1, one - 1, one, one + 1, inf - 2, inf - 1, inf, NAN[dtype]]
    positive += [int(encode(np.array(2.0**e), dtype)) for e in (-14, -8, -1, 1, 4, 8, 11, 15)]
    positive += [int(encode(np.array(v), dtype)) for v in (1.5, 3.0, 30.0, 255.0, 257.0, 2049.0)]
    unique = np.unique(np.array(positive, dtype=np.int64))
    return np.concatenate([unique, unique | sign_bit(dtype)]).astype(STORAGE[dtype])


def text(pattern: int, dtype: str) -> str:
    """One value in words: exact, short, NaNs with their pattern where it is not the plain one."""
    value = float(decode(np.array([pattern], dtype=STORAGE[dtype]), dtype)[0])
    if np.isnan(value):
        return "nan" if pattern == NAN[dtype] else f"nan:0x{pattern:x}"
    return repr(value)


def parse(word: object, dtype: str) -> int:
    """The inverse of `text`. Raises ValueError for a word that is no value of the dtype."""
    if isinstance(word, str) and word.startswith("nan:0x"):
        pattern = int(word[4:], 16)
        if not 0 <= pattern < 1 << WIDTH[dtype] or not is_nan(np.array([pattern], STORAGE[dtype]), dtype)[0]:
            raise ValueError(f"{word!r} is no NaN of {dtype}")
        return pattern
    if isinstance(word, bool) or not isinstance(word, (str, int, float)):
        raise ValueError(f"{word!r} is no number")
    value = np.array(float(word))
    pattern = int(encode(value, dtype))
    back = decode(np.array([pattern], STORAGE[dtype]), dtype)[0]
    if not (np.isnan(value) and np.isnan(back)) and back != value:
        raise ValueError(f"{word!r} is no value of {dtype}")
    return pattern
