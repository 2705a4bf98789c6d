"""Drawn parameters of heads: row ``k`` of a matrix depends on the seed and ``k`` alone, alike for every tp_size.

A row is a window into a pool of normal numbers, at a place that a hash of ``k`` names; to draw each number would cost
more than everything that is done with it. One row in eight is another one's twin, as the rows of never trained tokens
are in real checkpoints: a hidden state along such a row ties at the top.
"""

from __future__ import annotations

import functools

import numpy as np
import torch

_POOL = 1 << 20
_TWINS = 8
_COMMON = 0.7  # rows of real lm_heads share a direction; against it every logit is negative
_STD = 2.0  # a normalised hidden state then gives logits of about this deviation


def mixed(values: np.ndarray, salt: int) -> np.ndarray:
    """uint64 to uint64, each bit of the result depending on all of the argument (the finalizer of SplitMix64)."""
    with np.errstate(over="ignore"):
        z = values.astype(np.uint64) + np.uint64((salt * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) % 2**64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))


@functools.lru_cache(maxsize=4)
def _pool(seed: int, step: int, length: int) -> np.ndarray:
    rng = np.random.default_rng((seed, step, 1))
    return rng.standard_normal(_POOL + length, dtype=np.float32)


def twins(seed: int, step: int, ids: np.ndarray, num_rows: int) -> np.ndarray:
    """int64: the row that each row equals: itself, or for one in eight any other."""
    number = mixed(ids, 2 * (seed * 131 + step) + 1)
    other = (mixed(number, 5) % np.uint64(num_rows)).astype(np.int64)
    return np.where(number % np.uint64(_TWINS) == 0, other, ids.astype(np.int64))


def rows(seed: int, step: int, start: int, end: int, num_rows: int, length: int) -> torch.Tensor:
    """Rows ``[start, end)`` of ``num_rows``: float32 ``(end - start, length)``."""
    sources = twins(seed, step, np.arange(start, end), num_rows)
    places = (mixed(sources, 2 * (seed * 131 + step)) % np.uint64(_POOL)).astype(np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(_pool(seed, step, length), length)
    common = np.random.default_rng((seed, step, 3)).standard_normal(length, dtype=np.float32) * np.float32(_COMMON)
    return torch.from_numpy((windows[places] + common) * np.float32(_STD / np.sqrt(length)))


def bias(seed: int, start: int, end: int, num_rows: int) -> torch.Tensor:
    """float32 ``(end - start,)``, of the order of the logits; twins of step 0 have one bias."""
    sources = twins(seed, 0, np.arange(start, end), num_rows)
    places = (mixed(sources, 7 + 2 * seed) % np.uint64(_POOL)).astype(np.int64)
    return torch.from_numpy(_pool(seed, 0, 1)[places])


def gain(seed: int, step: int, length: int) -> torch.Tensor:
    """float32 ``(length,)`` in 0.25 to 2.5, no two alike: a uniform gain would hide a norm that is left out."""
    rng = np.random.default_rng((seed, step, 2))
    return torch.from_numpy(np.exp(rng.uniform(np.log(0.25), np.log(2.5), length)).astype(np.float32))
