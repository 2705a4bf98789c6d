"""A drafting loop as a case: a few numbers from which the ranks draft, feed tokens back and verify, and what they gave.

Like `refimpl.head_case.HeadCase` it stands in the journal and is what ``argmax-parity replay`` reads.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save

from refimpl.case import CaseError, check_format, file_holds, header_apart, read_json, read_note, reading
from refimpl.head_case import HeadRef
from refimpl.ranks.outcome import Run
from refimpl.vocab.layouts import Layout

FORMAT = "argmax-parity/draft-case/1"
# What a file may ask for; a loop of the suite has 4 steps of at most 64 sequences.
_MOST_STEPS, _MOST_SEQUENCES = 64, 1 << 16


@dataclass(frozen=True)
class DraftCase:
    """Some sequences through one head's drafting loop, ``steps`` tokens each.

    ``sequences``: their numbers, each of which decides its first token with ``seed``: one alone drafts as among others.
    """

    head: HeadRef
    layout: Layout
    sequences: tuple[int, ...]
    steps: int
    seed: int

    def __post_init__(self) -> None:
        if not 1 <= self.steps <= _MOST_STEPS:
            raise CaseError(f"steps is {self.steps}, it must be from 1 to {_MOST_STEPS}")
        if not 1 <= len(self.sequences) <= _MOST_SEQUENCES or min(self.sequences) < 0:
            raise CaseError(f"sequences must be 1 to {_MOST_SEQUENCES} numbers from 0")
        if not 0 <= self.seed < 2**32:
            raise CaseError(f"seed is {self.seed}, it must be from 0 to 2**32 - 1")

    @property
    def tp_size(self) -> int:
        return self.layout.tp_size

    @property
    def num_rows(self) -> int:
        return len(self.sequences) * self.steps

    @cached_property
    def digest(self) -> str:
        """A stable name of the case's content."""
        return hashlib.blake2b(repr(self.to_json()).encode(), digest_size=12).hexdigest()

    def smaller(self, sequences: tuple[int, ...], steps: int) -> DraftCase:
        return replace(self, sequences=sequences, steps=steps)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "head": self.head.name,
            "most_bytes": self.head.most_bytes,
            "bounds": [list(pair) for pair in self.layout.bounds],
            "padded_size": self.layout.padded_size,
            "sequences": list(self.sequences),
            "steps": self.steps,
            "seed": self.seed,
        }

    @classmethod
    def from_json(cls, document: Any) -> DraftCase:
        """Raises CaseError."""
        try:
            check_format(document["format"], FORMAT)
            most = document["most_bytes"]
            bounds = tuple((int(start), int(end)) for start, end in document["bounds"])
            return cls(
                head=HeadRef(str(document["head"]), None if most is None else int(most)),
                layout=Layout(bounds, int(document["padded_size"])),
                sequences=tuple(int(number) for number in document["sequences"]),
                steps=int(document["steps"]),
                seed=int(document["seed"]),
            )
        except CaseError:
            raise
        except (KeyError, TypeError, ValueError, OverflowError, IndexError, AttributeError) as error:
            raise CaseError(f"it is no drafting loop: {type(error).__name__}: {error}") from error

    def to_bytes(self, note: dict[str, str]) -> bytes:
        numbers = np.array(self.sequences, np.int64)
        return save({"sequences": numbers}, metadata={"draft_case": json.dumps(self.to_json()), **note})

    def to_buffers(self, note: dict[str, str]) -> list[bytes]:
        return header_apart(self.to_bytes(note))

    @classmethod
    def load(cls, path: Path) -> tuple[DraftCase, dict[str, Any]]:
        """The case in a JSON or safetensors file and what was noted beside it. Raises CaseError."""
        with reading(path):
            if path.suffix == ".json":
                document = read_json(path)
                return cls.from_json(document["draft_case"]), document
            with safe_open(str(path), framework="numpy") as file:
                note = read_note(file)
                return cls.from_json(json.loads(note.pop("draft_case"))), note


def is_draft_case(path: Path) -> bool:
    """Whether a file holds a drafting loop; False also where it cannot be read."""
    return file_holds(path, "draft_case")


@dataclass(frozen=True, eq=False)
class Loop:
    """One loop: drafted and greedy tokens and hidden states, ``(steps, batch, ...)``."""

    drafted: np.ndarray
    greedy: np.ndarray
    states: np.ndarray

    @property
    def accepted(self) -> np.ndarray:
        """How many drafted tokens of each sequence are accepted, int64 ``(batch,)``; the bonus token is not counted."""
        return np.asarray(np.cumprod(self.drafted == self.greedy, axis=0).sum(axis=0))


@dataclass(frozen=True, eq=False)
class Loops:
    """The full gather's loop and the path's, each on every rank, and how many of the full gather's rows tied.

    ``shows_nothing``: each of them tied or held a NaN.
    """

    full: list[Loop]
    local: list[Loop]
    tied: int | None
    shows_nothing: bool = False

    @classmethod
    def of(cls, run: Run) -> Loops | None:
        """None of a run that did not come to its end on every rank."""
        ranks = [rank.loops for rank in run.ranks]
        if any(len(arrays) < 6 for arrays in ranks):
            return None
        tied, nothing = map(int, ranks[0][6]) if len(ranks[0]) > 6 else (None, False)
        loops = [Loop(*arrays[:3]) for arrays in ranks], [Loop(*arrays[3:6]) for arrays in ranks]
        return cls(*loops, tied, bool(nothing))
