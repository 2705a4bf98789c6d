"""A case: the explicit input of one or more calls of a path on all ranks, in plain arrays and numbers.

Cases travel to the ranks, stand in the journal and are what ``argmax-parity replay`` reads, so they hold everything
that decides the answer and nothing else, and are read from JSON or safetensors only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from refimpl import bits
from refimpl.vocab.d2t import check_table, targets
from refimpl.vocab.layouts import Layout

FORMAT = "argmax-parity/case/1"
REPORT_FORMAT = "argmax-parity/counterexample/1"  # of a report's file, in which a case of any kind lies
# What a file may ask of a machine before anything is allocated or started; a real case is far below both.
_MOST_CELLS = 1 << 31
_MOST_JSON_BYTES = 1 << 26
MOST_RANKS = 64
_SAFETENSORS_DTYPES = {"uint32": "U32", "uint16": "U16", "int64": "I64"}


class CaseError(ValueError):
    """A case file cannot be read: one sentence that names what is wrong."""


def unreadable(error: Exception) -> str:
    """Why a file cannot be read, in the system's words where it has some."""
    return str(error.strerror) if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Whatever goes wrong while a case file is read is one sentence that names the file. Raises CaseError."""
    try:
        wrong = _no_case_file(path)
        if wrong:
            raise CaseError(wrong)
        yield
    except CaseError as error:
        words = str(error)
        raise CaseError(words if words.startswith(f"{path}: ") else f"{path}: {words}") from error
    except KeyError as error:
        raise CaseError(f"{path}: it is no case: {error} is missing in it") from error
    except (OSError, TypeError, ValueError, OverflowError, RecursionError, SafetensorError) as error:
        raise CaseError(f"{path}: it cannot be read as a case ({unreadable(error)})") from error


def _no_case_file(path: Path) -> str | None:
    """What a file is, seen from outside, where it is none that a case could be in."""
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        return "it is a folder; name a case file in it"
    if not stat.S_ISREG(status.st_mode):
        return "it is no regular file; name a case file"
    if path.suffix == ".json" and status.st_size > _MOST_JSON_BYTES:
        return f"it has {status.st_size} bytes, and a case in JSON has {_MOST_JSON_BYTES} at most"
    return None


def file_holds(path: Path, name: str) -> bool:
    """Whether a JSON or safetensors file has something under ``name``; False also where it cannot be read."""
    try:
        if _no_case_file(path):
            return False
        if path.suffix == ".json":
            return name in json.loads(path.read_text())
        with safe_open(str(path), framework="numpy") as file:
            return name in (file.metadata() or {})
    except (OSError, ValueError, TypeError, RecursionError, SafetensorError):
        return False


def check_format(found: Any, known: str) -> None:
    """Raises CaseError where a file is of a format that this release does not read."""
    if found != known:
        raise CaseError(f"its format is {found!r}, this release reads {known!r}")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; one that lies beside a case must be of the format of reports. Raises CaseError."""
    document = json.loads(path.read_text())
    if not isinstance(document, dict):
        raise CaseError("it holds no JSON object")
    if any(name in document for name in ("case", "head_case", "draft_case", "engine_case", "topk_case")):
        check_format(document.get("format", REPORT_FORMAT), REPORT_FORMAT)
    return document


def read_note(file: Any) -> dict[str, Any]:
    """What a safetensors file says beside its arrays. Raises CaseError as `read_json`."""
    note = dict(file.metadata() or {})
    check_format(note.get("format", REPORT_FORMAT), REPORT_FORMAT)
    return note


def header_apart(whole: bytes) -> list[bytes]:
    """A safetensors file as the journal writes it: the length of its header first, for itself."""
    return [whole[:8], whole[8:]]


def padded(real: np.ndarray, padded_size: int, padding: Sequence[int], rank: int) -> np.ndarray:
    """The real columns of a rank, ``(batch, num_real)``, and padding patterns dealt out after them."""
    batch, num_real = real.shape
    if num_real == padded_size:
        return np.ascontiguousarray(real)
    local = np.empty((batch, padded_size), dtype=real.dtype)
    local[:, :num_real] = real
    # Rank and row shift the deal so that no rank and no row sees the same values everywhere.
    cells = padded_size - num_real
    dealt = np.tile(np.array(padding, dtype=real.dtype), cells // len(padding) + 2)
    for shift in range(min(batch, len(padding))):
        begin = (shift + rank) % len(padding)
        local[shift :: len(padding), num_real:] = dealt[begin : begin + cells]
    return local


def sliding(base: np.ndarray, columns: int) -> np.ndarray:
    """Rows of so many columns that slide over ``base``, each one place to the left of the row before.

    A value of the base is thereby in the next column of every next row. The rows are a view: real vocabularies need
    more memory for the rows of one value in every column than there is.
    """
    return np.lib.stride_tricks.sliding_window_view(base, columns)[::-1]


def base_of_sliding(rows: np.ndarray) -> np.ndarray | None:
    """The base that ``rows`` slide over, or None if they are not such rows."""
    size = rows.itemsize
    if rows.ndim != 2 or rows.strides != (-size, size) or 0 in rows.shape:
        return None
    length = rows.shape[0] + rows.shape[1] - 1
    return np.lib.stride_tricks.as_strided(rows[-1], (length,), (size,))


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a path, seen from outside the ranks.

    ``logits``: bit patterns of the real columns, ``(batch, vocab_size)``, see `refimpl.bits`.
    ``padding``: bit patterns dealt out in turn over the padding cells of all ranks.
    ``d2t``: int64 ``(vocab_size,)`` offsets or None.
    """

    layout: Layout
    dtype: str
    logits: np.ndarray
    padding: tuple[int, ...] = (0,)
    d2t: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.dtype not in bits.DTYPES:
            raise CaseError(f"dtype {self.dtype!r} is none of {', '.join(bits.DTYPES)}")
        if self.logits.ndim != 2 or self.logits.shape[1] != self.layout.vocab_size:
            raise CaseError(f"logits of shape {self.logits.shape} do not fit a vocabulary of {self.layout.vocab_size}")
        if self.logits.dtype != bits.STORAGE[self.dtype]:
            raise CaseError(f"logits of {self.dtype} must be {bits.STORAGE[self.dtype].__name__} patterns")
        if not self.padding:
            raise CaseError("padding needs at least one pattern")

    @property
    def batch(self) -> int:
        return int(self.logits.shape[0])

    @cached_property
    def num_padding(self) -> tuple[int, ...]:
        return tuple(self.layout.padded_size - (end - start) for start, end in self.layout.bounds)

    def local_logits(self, rank: int) -> np.ndarray:
        """Patterns of ``(batch, padded_size)`` as this rank holds them."""
        start, end = self.layout.bounds[rank]
        return padded(self.logits[:, start:end], self.layout.padded_size, self.padding, rank)

    def values(self, as_type: type = np.float64) -> np.ndarray:
        return bits.decode(self.logits, self.dtype, as_type)

    def rows(self, index: Any) -> Call:
        return replace(self, logits=np.ascontiguousarray(self.logits[index]))


@dataclass(frozen=True, eq=False)
class Case:
    """Calls made one after the other by ranks of one generation.

    ``bystanders``: ranks of the world before the group under test, which the path must leave alone.
    """

    calls: tuple[Call, ...]
    bystanders: int = 0

    def __post_init__(self) -> None:
        if not self.calls:
            raise CaseError("a case needs at least one call")
        if len({call.layout.tp_size for call in self.calls}) != 1:
            raise CaseError("all calls of a case need the same tp_size")
        if not 0 <= self.bystanders <= MOST_RANKS or self.tp_size > MOST_RANKS:
            ranks = f"{self.tp_size} ranks beside {self.bystanders} bystanders"
            raise CaseError(f"it asks for {ranks}; each may be {MOST_RANKS} at most")

    @property
    def tp_size(self) -> int:
        return self.calls[0].layout.tp_size

    @property
    def num_rows(self) -> int:
        return sum(call.batch for call in self.calls)

    @cached_property
    def digest(self) -> str:
        """A stable name of the case's content."""
        state = hashlib.blake2b(digest_size=12)
        state.update(f"{self.bystanders}".encode())
        for call in self.calls:
            state.update(repr((call.layout.bounds, call.layout.padded_size, call.dtype, call.padding)).encode())
            state.update(repr(call.logits.shape).encode())
            state.update(np.ascontiguousarray(call.logits).data)
            state.update(b"no table" if call.d2t is None else np.ascontiguousarray(call.d2t).data)
        return state.hexdigest()

    # -- JSON: small cases, readable --------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "bystanders": self.bystanders,
            "calls": [
                {
                    **_call_head(call),
                    "logits": [[json_value(int(b), call.dtype) for b in row] for row in call.logits],
                    "d2t": None if call.d2t is None else [int(offset) for offset in call.d2t],
                }
                for call in self.calls
            ],
        }

    @classmethod
    def from_json(cls, document: Any) -> Case:
        """Raises CaseError."""
        try:
            check_format(document["format"], FORMAT)
            calls = []
            for entry in document["calls"]:
                layout, dtype, padding, shape = _read_head(entry)
                patterns = [[bits.parse(word, dtype) for word in row] for row in entry["logits"]]
                logits = np.array(patterns, dtype=bits.STORAGE[dtype]).reshape(shape)
                d2t = None if entry.get("d2t") is None else _table(np.array(entry["d2t"]), shape)
                calls.append(Call(layout, dtype, logits, padding, d2t))
            return cls(tuple(calls), int(document.get("bystanders", 0)))
        except CaseError:
            raise
        except KeyError as error:
            raise CaseError(f"it is no case: {error} is missing in it") from error
        except (TypeError, ValueError, OverflowError) as error:
            raise CaseError(f"it is no case: {type(error).__name__}: {error}") from error

    # -- safetensors: any case, quick --------------------------------------------------------------

    def to_buffers(self, note: dict[str, str]) -> list[bytes | memoryview]:
        """The case as a safetensors file in parts: the header's length, the header, then every array as it lies in
        memory, without a copy. Calls of the same array name it, and it is there once."""
        calls = [_call_head(call) for call in self.calls]
        head = {"format": FORMAT, "bystanders": self.bystanders, "calls": calls}
        entries: dict[str, Any] = {}
        written: dict[int, str] = {}
        data: list[bytes | memoryview] = []
        offset = 0
        for index, call in enumerate(self.calls):
            for name, given in (("logits", call.logits), ("d2t", call.d2t)):
                if given is None:
                    continue
                base = base_of_sliding(given)
                if base is not None:
                    calls[index]["slides"] = True
                if id(given) in written:
                    calls[index][name] = written[id(given)]
                    continue
                written[id(given)] = f"{index}.{name}"
                array = np.ascontiguousarray(given if base is None else base)
                dtype = _SAFETENSORS_DTYPES[array.dtype.name]
                span = [offset, offset + array.nbytes]
                entries[f"{index}.{name}"] = {"dtype": dtype, "shape": array.shape, "data_offsets": span}
                if array.nbytes:
                    data.append(array.reshape(-1).view(np.uint8).data)
                offset = span[1]
        entries["__metadata__"] = {"case": json.dumps(head), **note}
        header = json.dumps(entries).encode()
        header += b" " * (-len(header) % 8)
        return [len(header).to_bytes(8, "little"), header, *data]

    def to_bytes(self, note: dict[str, str]) -> bytes:
        """The case and what is noted beside it as one safetensors file."""
        return b"".join(self.to_buffers(note))

    @classmethod
    def load(cls, path: Path) -> tuple[Case, dict[str, Any]]:
        """The case in a JSON or safetensors file and what was noted beside it. Raises CaseError."""
        with reading(path):
            if path.suffix == ".json":
                document = read_json(path)
                return cls.from_json(document.get("case", document)), document
            with safe_open(str(path), framework="numpy") as file:
                note = read_note(file)
                head = json.loads(note.pop("case"))
                check_format(head["format"], FORMAT)
                names = set(file.keys())
                calls = []
                for index, entry in enumerate(head["calls"]):
                    layout, dtype, padding, shape = _read_head(entry)
                    stored = file.get_tensor(entry.get("logits", f"{index}.logits"))
                    logits = sliding(stored, shape[1]) if entry.get("slides") else stored.reshape(shape)
                    table = entry.get("d2t", f"{index}.d2t")
                    d2t = _table(file.get_tensor(table), shape) if table in names else None
                    calls.append(Call(layout, dtype, logits, padding, d2t))
                return cls(tuple(calls), int(head["bystanders"])), note


def _call_head(call: Call) -> dict[str, Any]:
    return {
        "bounds": [list(pair) for pair in call.layout.bounds],
        "padded_size": call.layout.padded_size,
        "dtype": call.dtype,
        "batch": call.batch,
        "padding": [json_value(pattern, call.dtype) for pattern in call.padding],
    }


def _read_head(entry: dict[str, Any]) -> tuple[Layout, str, tuple[int, ...], tuple[int, int]]:
    dtype = entry["dtype"]
    if dtype not in bits.DTYPES:
        raise CaseError(f"dtype {dtype!r} is none of {', '.join(bits.DTYPES)}")
    bounds = tuple((_whole(start, "a bound"), _whole(end, "a bound")) for start, end in entry["bounds"])
    layout = Layout(bounds, _whole(entry["padded_size"], "padded_size"))
    padding = tuple(bits.parse(word, dtype) for word in entry["padding"])
    batch = _whole(entry["batch"], "batch")
    cells = batch * layout.padded_size * layout.tp_size
    if cells > _MOST_CELLS:
        raise CaseError(
            f"a batch of {batch} at padded_size {layout.padded_size} on {layout.tp_size} ranks is {cells} logits, "
            f"more than the {_MOST_CELLS} that a case may have"
        )
    return layout, dtype, padding, (batch, layout.vocab_size)


def _whole(number: Any, name: str) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise CaseError(f"{name} is {number!r}, it must be a whole number from 0 on")
    return number


def _table(d2t: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """A table under which the reference is defined, and fits into memory."""
    batch, vocab_size = shape
    errors = check_table(d2t, vocab_size).errors
    if errors:
        raise CaseError(errors[0])
    highest = int(targets(d2t).max())
    if max(1, batch) * (highest + 1) > _MOST_CELLS:
        raise CaseError(f"d2t leads to target id {highest}; {batch} rows so wide are more than a case may have")
    return d2t


def json_value(pattern: int, dtype: str) -> float | str:
    word = bits.text(pattern, dtype)
    # JSON has no infinities and NaNs, and many readers lose the sign of -0.0: those travel as words.
    return word if word.startswith("nan") or "inf" in word or word == "-0.0" else float(word)
