"""The third opinion: the rules of a row in NumPy, with neither torch nor shards.

It keeps the reference honest and therefore gets to the token by another way: the tied set, then its lowest target by a
masked minimum; nothing is scattered into a target vocabulary.
"""

from __future__ import annotations

import numpy as np


def tied_set(row: np.ndarray) -> np.ndarray:
    """Mask of the columns that tie for the maximum: float ``(..., vocab_size)`` gives bool of the same shape.

    The columns equal to the maximum, -0.0 and 0.0 being equal; in a row with NaNs, its NaNs.
    """
    maximum = row.max(axis=-1, keepdims=True)  # NaN where the row holds one
    tied: np.ndarray = row == maximum
    if np.isnan(maximum).any():
        tied |= np.isnan(row)
    return tied


def oracle_tokens(values: np.ndarray, d2t: np.ndarray | None = None) -> np.ndarray:
    """Token ids of float rows: ``(batch, vocab_size)`` gives int64 ``(batch,)``, the lowest id of each row's tied set.

    float32 and float64 both hold the three logits dtypes exactly.

    ``d2t``: int64 ``(vocab_size,)`` offsets, injective, no target negative; then ids are targets, and a row that is all
    -inf gives filler id 0.
    """
    if d2t is None:
        columns: np.ndarray = np.argmax(values, axis=1)
        return columns.astype(np.int64)
    target_ids = np.broadcast_to(np.arange(values.shape[1]) + d2t, values.shape)
    tokens: np.ndarray = np.min(target_ids, axis=1, where=tied_set(values), initial=np.iinfo(np.int64).max)
    tokens[values.max(axis=1) == -np.inf] = 0
    return tokens
