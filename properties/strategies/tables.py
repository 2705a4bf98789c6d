"""D2T tables: in the order trainers write them, and with one pair out of place.

Sorted tables hide that a path maps the lowest draft id of a tie where the reference takes the lowest target id.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from refimpl.vocab import d2t

RISING = ("gaps", "dense", "identity", "shifted")
NOT_RISING = ("frequency", "one inversion", "shuffled", "reversed")
# Offsets that int16 wraps, and targets that float32 rounds; the reference's row is as long as the highest target.
FAR = ("beyond int16", "beyond float32")


@dataclass(frozen=True)
class Table:
    """A table of any length.

    ``gaps``: a sorted subset of a larger vocabulary. ``dense``: sorted, all but one or two targets used. ``identity``:
    all offsets 0. ``shifted``: one constant offset, so that target 0 has no draft id. ``one inversion``: sorted, but
    for two neighbours. ``beyond ...``: sorted, the upper targets from 2**15 or 2**24 on.
    """

    kind: str
    seed: int

    def expand(self, vocab_size: int) -> np.ndarray:
        """int64 ``(vocab_size,)`` offsets."""
        rng = np.random.default_rng(self.seed)
        spread = int(rng.integers(vocab_size + 1, 3 * vocab_size + 3))
        if self.kind == "identity":
            return d2t.identity_table(vocab_size)
        if self.kind == "shifted":
            return np.full(vocab_size, int(rng.integers(1, 4)), np.int64)
        if self.kind == "dense":
            return d2t.rising_table(vocab_size, vocab_size + int(rng.integers(1, 3)), rng)
        if self.kind == "frequency":
            return d2t.frequency_table(vocab_size, spread, rng)
        targets = d2t.targets(d2t.rising_table(vocab_size, spread, rng))
        if self.kind == "one inversion" and vocab_size > 1:
            place = int(rng.integers(vocab_size - 1))
            targets[[place, place + 1]] = targets[[place + 1, place]]
        elif self.kind == "shuffled":
            targets = rng.permutation(targets)
        elif self.kind == "reversed":
            targets = targets[::-1]
        elif self.kind in FAR:
            edge = {"beyond int16": 2**15, "beyond float32": 2**24}[self.kind]
            # Odd targets past 2**24 are the ones that float32 has no number for.
            first = int(rng.integers(0, vocab_size // 4 + 1))
            targets[first:] = edge + 1 + 2 * np.arange(vocab_size - first)
        return d2t.offsets(targets)


@functools.cache
def tables(kinds: tuple[str, ...] = RISING) -> st.SearchStrategy[Table]:
    return st.builds(Table, st.sampled_from(kinds), st.integers(0, 2**16))


@dataclass(frozen=True)
class BadTable:
    """A table that breaks its contract in one way; `expand` gives what `refimpl.vocab.d2t.check_table` takes."""

    fault: str
    vocab_size: int
    seed: int

    def expand(self) -> tuple[np.ndarray, int, int]:
        """The table, its draft vocabulary's size and its target vocabulary's size."""
        rng = np.random.default_rng(self.seed)
        target_size = 2 * self.vocab_size + 1
        targets = rng.permutation(d2t.targets(d2t.rising_table(self.vocab_size, target_size, rng)))
        place, other = rng.choice(self.vocab_size, 2, replace=False)
        if self.fault == "duplicate":
            targets[place] = targets[other]
        elif self.fault == "too high":
            targets[place] = target_size + int(rng.integers(3))
        elif self.fault == "negative":
            targets[place] = -1 - int(rng.integers(3))
        table = d2t.offsets(targets)
        if self.fault == "too short":
            table = table[:-1]
        elif self.fault == "too long":
            table = np.append(table, 0)
        elif self.fault == "two dimensions":
            table = table[None, :]
        elif self.fault == "int32":
            table = table.astype(np.int32)
        elif self.fault == "floats":
            table = table.astype(np.float64)
        return table, self.vocab_size, target_size


# Fault, and a word of the sentence that must name it.
FAULTS = {
    "duplicate": "both map to target",
    "too high": "outside the target vocabulary",
    "negative": "outside the target vocabulary",
    "too short": "has shape",
    "too long": "has shape",
    "two dimensions": "has shape",
    "int32": "has dtype",
    "floats": "has dtype",
}


def bad_tables() -> st.SearchStrategy[BadTable]:
    return st.builds(BadTable, st.sampled_from(sorted(FAULTS)), st.integers(2, 64), st.integers(0, 2**16))
