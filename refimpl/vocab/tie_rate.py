"""How often a table's order decides a row: the share of rows whose token differs between the two tie rules.

A row differs exactly if the lowest target id of its tied set belongs to another member than its lowest draft id. The
share depends on the head: bfloat16 logits of real heads tie at the top in some per cent of rows, float32 ones hardly
ever. It is therefore measured on the head's own logits, from random hidden states, and printed with its interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from refimpl.oracle import tied_set

# Two-sided 95 % of the normal distribution.
_Z = 1.959964


@dataclass(frozen=True)
class TieRate:
    """Counts of rows: ``rows`` looked at, ``tied`` at the top, ``differing`` between the tie rules.

    ``tied`` is None where only tokens were seen.
    """

    rows: int
    differing: int
    tied: int | None = None

    def __add__(self, other: TieRate) -> TieRate:
        tied = None if self.tied is None or other.tied is None else self.tied + other.tied
        return TieRate(self.rows + other.rows, self.differing + other.differing, tied)

    @property
    def share(self) -> float:
        return self.differing / self.rows if self.rows else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the share: (0, 1) without rows, and above zero at the top even if none differs."""
        if not self.rows:
            return 0.0, 1.0
        n, p, z2 = self.rows, self.share, _Z * _Z
        middle = (p + z2 / (2 * n)) / (1 + z2 / n)
        half = _Z * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n)
        return max(0.0, middle - half), min(1.0, middle + half)

    def __str__(self) -> str:
        low, high = self.interval
        tied = "" if self.tied is None else f", {self.tied} of them tied at the top"
        return (
            f"{self.differing} of {self.rows} rows from random hidden states differ ({100 * self.share:.2g} %, "
            f"95 % interval {100 * low:.2g} to {100 * high:.2g} %){tied}"
        )


def from_rows(values: np.ndarray, target_ids: np.ndarray) -> TieRate:
    """Count float ``(rows, draft_vocab_size)`` rows under int64 ``(draft_vocab_size,)`` targets.

    Rows that are all -inf are left out: they are a condition of their own.
    """
    values = values[values.max(axis=1) != -np.inf]
    if not len(values):
        return TieRate(0, 0, 0)
    tied = tied_set(values)
    lowest_draft = target_ids[np.argmax(tied, axis=1)]
    spread = np.broadcast_to(target_ids, values.shape)
    lowest_target = np.min(spread, axis=1, where=tied, initial=np.iinfo(np.int64).max)
    return TieRate(len(values), int((lowest_draft != lowest_target).sum()), int((tied.sum(axis=1) > 1).sum()))


def from_tokens(tokens: np.ndarray, draft_ids: np.ndarray, target_ids: np.ndarray) -> TieRate:
    """Count from what the ranks gave: tokens by the target-id rule and draft ids of the same rows without a table."""
    return TieRate(len(tokens), int((tokens != target_ids[draft_ids]).sum()))
