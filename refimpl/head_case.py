"""A case from hidden states: what both answers of a head start from, in plain arrays and numbers.

Like `refimpl.case.Case` it travels to the ranks, stands in the journal and is what ``argmax-parity replay`` reads.
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

from refimpl import bits
from refimpl.case import CaseError, check_format, file_holds, header_apart, json_value, read_json, read_note, reading
from refimpl.vocab.layouts import Layout

FORMAT = "argmax-parity/head-case/1"
# What a file may ask for: rows are written sparse, so it says little of their size.
_MOST_VALUES = 1 << 28


@dataclass(frozen=True)
class HeadRef:
    """A head as the ranks load it. ``most_bytes``: of weights, beyond which the hidden size is reduced."""

    name: str
    most_bytes: int | None = None


@dataclass(frozen=True, eq=False)
class HeadCase:
    """One batch of hidden states through one head.

    ``hidden_states``: bit patterns ``(batch, hidden_size)``, see `refimpl.bits`.
    """

    head: HeadRef
    layout: Layout
    dtype: str
    hidden_states: np.ndarray
    spec_step_idx: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in bits.DTYPES:
            raise CaseError(f"dtype {self.dtype!r} is none of {', '.join(bits.DTYPES)}")
        if self.hidden_states.ndim != 2 or self.hidden_states.dtype != bits.STORAGE[self.dtype]:
            raise CaseError(f"hidden states must be (batch, hidden_size) {bits.STORAGE[self.dtype].__name__} patterns")
        if self.spec_step_idx < 0:
            raise CaseError(f"spec_step_idx is {self.spec_step_idx}, it must be at least 0")

    @property
    def tp_size(self) -> int:
        return self.layout.tp_size

    @property
    def num_rows(self) -> int:
        return int(self.hidden_states.shape[0])

    @cached_property
    def digest(self) -> str:
        """A stable name of the case's content."""
        state = hashlib.blake2b(digest_size=12)
        state.update(repr((self.head, self.layout, self.dtype, self.spec_step_idx, self.hidden_states.shape)).encode())
        state.update(np.ascontiguousarray(self.hidden_states).data)
        return state.hexdigest()

    def rows(self, index: Any) -> HeadCase:
        return replace(self, hidden_states=np.ascontiguousarray(self.hidden_states[index]))

    def with_values(self, hidden_states: np.ndarray) -> HeadCase:
        return replace(self, hidden_states=hidden_states)

    def _head_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "head": self.head.name,
            "most_bytes": self.head.most_bytes,
            "bounds": [list(pair) for pair in self.layout.bounds],
            "padded_size": self.layout.padded_size,
            "dtype": self.dtype,
            "spec_step_idx": self.spec_step_idx,
            "hidden_size": int(self.hidden_states.shape[1]),
        }

    def to_json(self) -> dict[str, Any]:
        """Readable; of a row with few values other than zero only those are written."""
        rows: list[Any] = []
        for row in self.hidden_states:
            filled = np.flatnonzero(row)
            if len(filled) * 4 < len(row):
                rows.append({str(column): json_value(int(row[column]), self.dtype) for column in filled})
            else:
                rows.append([json_value(int(pattern), self.dtype) for pattern in row])
        return {**self._head_json(), "hidden_states": rows}

    @classmethod
    def from_json(cls, document: Any) -> HeadCase:
        """Raises CaseError."""
        try:
            check_format(document["format"], FORMAT)
            dtype, size = str(document["dtype"]), int(document["hidden_size"])
            if dtype not in bits.DTYPES:
                raise CaseError(f"dtype {dtype!r} is none of {', '.join(bits.DTYPES)}")
            rows = len(document["hidden_states"])
            if rows * size > _MOST_VALUES:
                raise CaseError(f"{rows} hidden states of {size} values are more than the {_MOST_VALUES} of a case")
            hidden_states = np.zeros((rows, size), bits.STORAGE[dtype])
            for number, row in enumerate(document["hidden_states"]):
                entries = row.items() if isinstance(row, dict) else enumerate(row)
                if not isinstance(row, dict) and len(row) != size:
                    raise CaseError(f"row {number} holds {len(row)} values, hidden_size is {size}")
                for column, word in entries:
                    hidden_states[number, int(column)] = bits.parse(word, dtype)
            return cls._from_head(document, hidden_states)
        except CaseError:
            raise
        except (KeyError, TypeError, ValueError, OverflowError, IndexError, AttributeError) as error:
            raise CaseError(f"it is no case of a head: {type(error).__name__}: {error}") from error

    @classmethod
    def _from_head(cls, document: dict[str, Any], hidden_states: np.ndarray) -> HeadCase:
        most = document["most_bytes"]
        bounds = tuple((int(start), int(end)) for start, end in document["bounds"])
        return cls(
            head=HeadRef(str(document["head"]), None if most is None else int(most)),
            layout=Layout(bounds, int(document["padded_size"])),
            dtype=document["dtype"],
            hidden_states=hidden_states,
            spec_step_idx=int(document["spec_step_idx"]),
        )

    def to_bytes(self, note: dict[str, str]) -> bytes:
        states = np.ascontiguousarray(self.hidden_states)
        return save({"hidden_states": states}, metadata={"head_case": json.dumps(self._head_json()), **note})

    def to_buffers(self, note: dict[str, str]) -> list[bytes]:
        return header_apart(self.to_bytes(note))

    @classmethod
    def load(cls, path: Path) -> tuple[HeadCase, dict[str, Any]]:
        """The case in a JSON or safetensors file and what was noted beside it. Raises CaseError."""
        with reading(path):
            if path.suffix == ".json":
                document = read_json(path)
                return cls.from_json(document["head_case"]), document
            with safe_open(str(path), framework="numpy") as file:
                note = read_note(file)
                head = json.loads(note.pop("head_case"))
                check_format(head["format"], FORMAT)
                return cls._from_head(head, file.get_tensor("hidden_states")), note


def is_head_case(path: Path) -> bool:
    """Whether a file holds a case from hidden states; False also where it cannot be read."""
    return file_holds(path, "head_case")
