"""A case of a live engine: the options its classes are built with, and what both of its answers start from.

Plain arrays and numbers, like `refimpl.case.Case`: it travels to the ranks, stands in a report's case file and is what
``argmax-parity replay`` reads.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save

from refimpl import bits
from refimpl.case import CaseError, check_format, file_holds, header_apart, json_value, read_json, read_note, reading
from refimpl.vocab.d2t import check_table
from refimpl.vocab.layouts import Layout, padded_layout

FORMAT = "argmax-parity/engine-case/1"
_MOST_VALUES = 1 << 22
_GREATEST_K = 1 << 20


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Options of an engine that change its answer; the defaults are those of its supported use.

    ``vocab_size``: the lm_head's own vocabulary. ``num_added``: embeddings added after it. ``processor_vocab_size``:
    the size that the full gather is cut to, where it is not the lm_head's. ``target_vocab_size``: of a table.
    ``head_dtype``: of the projection, where it is not ``dtype``. ``k``: of a top-k, or None for the argmax;
    ``log_probs``: its values are log probabilities.
    """

    vocab_size: int
    padding_size: int
    dtype: str = "float32"
    head_dtype: str | None = None
    num_added: int = 0
    processor_vocab_size: int | None = None
    target_vocab_size: int | None = None
    scale: float = 1.0
    soft_cap: float | None = None
    logits_as_input: bool = False
    k: int | None = None
    log_probs: bool = False

    @property
    def num_embeddings(self) -> int:
        return self.vocab_size + self.num_added

    @property
    def logits_dtype(self) -> str:
        return self.head_dtype or self.dtype


@dataclass(frozen=True, eq=False)
class EngineCase:
    """One batch through both answers of one engine.

    ``weight``: bit patterns ``(num_embeddings, hidden_size)`` of ``options.dtype``, see `refimpl.bits`.
    ``hidden_states``: ``(batch, hidden_size)`` or with one more dimension before; with ``logits_as_input`` the logits
    themselves. ``bias``: ``(num_embeddings,)`` or None. ``d2t``: int64 ``(vocab_size,)`` offsets or None.

    Raises CaseError.
    """

    engine: str
    tp_size: int
    options: EngineOptions
    weight: np.ndarray
    hidden_states: np.ndarray
    bias: np.ndarray | None = None
    d2t: np.ndarray | None = None

    def __post_init__(self) -> None:
        options = self.options
        for dtype in (options.dtype, options.logits_dtype):
            if dtype not in bits.DTYPES:
                raise CaseError(f"dtype {dtype!r} is none of {', '.join(bits.DTYPES)}")
        if options.k is not None and not 1 <= options.k <= _GREATEST_K:
            raise CaseError(f"k is {options.k}, it must be from 1 to {_GREATEST_K}")
        if self.weight.ndim != 2 or len(self.weight) != options.num_embeddings:
            raise CaseError(f"weight is {self.weight.shape}, it must have {options.num_embeddings} rows")
        if self.hidden_states.ndim not in (2, 3):
            raise CaseError(f"hidden states are {self.hidden_states.shape}, they must have two or three dimensions")
        if not options.logits_as_input and self.hidden_states.shape[-1] != self.weight.shape[1]:
            raise CaseError(f"hidden states are {self.hidden_states.shape}, the weight is {self.weight.shape}")

    @property
    def num_rows(self) -> int:
        return math.prod(self.hidden_states.shape[:-1])

    @cached_property
    def layout(self) -> Layout:
        """Shards of the lm_head's own vocabulary as engines cut them. Raises ValueError where none can be cut."""
        return padded_layout(self.options.vocab_size, self.tp_size, self.options.padding_size)

    @cached_property
    def has_rising_table(self) -> bool:
        return self.d2t is None or check_table(self.d2t, len(self.d2t)).is_rising

    @cached_property
    def departures(self) -> tuple[str, ...]:
        """What is outside the supported use: rising table, positive scale, a batch of one or more, matching sizes."""
        options = self.options
        found = {
            "table-order": not self.has_rising_table,
            "scale": options.scale <= 0,
            "empty-batch": self.num_rows == 0,
            "three-dimensional": self.hidden_states.ndim == 3,
            "smaller-processor": (options.processor_vocab_size or options.vocab_size) < options.vocab_size,
            "larger-processor": (options.processor_vocab_size or options.vocab_size) > options.vocab_size,
            "added-vocabulary": options.num_added > 0,
            "logits-as-input": options.logits_as_input,
        }
        if options.k is not None:
            found["k-beyond-vocabulary"] = options.k > options.vocab_size
            found["k-beyond-shard"] = self.layout.padded_size < options.k <= options.vocab_size
        return tuple(name for name, is_there in found.items() if is_there)

    @cached_property
    def needs(self) -> tuple[str, ...]:
        """The departures; of a top-k also what changes the values that its selection does not look at."""
        options = self.options
        if options.k is None:
            return self.departures
        cap, scaling = options.soft_cap is not None, options.scale > 0 and options.scale != 1.0
        is_16_bit = options.logits_dtype != "float32"
        found = {
            "log-probs": options.log_probs,
            "cap": cap,
            "scaling": scaling,
            "16-bit": is_16_bit and (cap or scaling),  # else values are what the projection gives
        }
        return (*self.departures, *(name for name, is_there in found.items() if is_there))

    @property
    def digest(self) -> str:
        """A stable name of the case's content."""
        state = hashlib.blake2b(digest_size=12)
        state.update(repr((self.engine, self.tp_size, self.options)).encode())
        for array in (self.weight, self.hidden_states, self.bias, self.d2t):
            state.update(b"-" if array is None else repr(array.shape).encode() + np.ascontiguousarray(array).data)
        return state.hexdigest()

    def changed(self, **more: Any) -> EngineCase:
        """A copy in which fields of the case, or of its options, are others."""
        own = {name: value for name, value in more.items() if name in {entry.name for entry in fields(self)}}
        options = {name: value for name, value in more.items() if name not in own}
        return replace(self, **own, options=replace(own.get("options", self.options), **options))

    def plainly(self) -> EngineCase | None:
        """The same hidden states and weights in the supported use, without cap and scale. Of a top-k only; None where
        there is no such case."""
        options = self.options
        if options.k is None or not self.num_rows or self.hidden_states.shape[-1] != self.weight.shape[1]:
            return None
        rows = options.vocab_size
        plain = EngineOptions(
            vocab_size=rows,
            padding_size=options.padding_size,
            dtype=options.dtype,
            head_dtype=options.head_dtype,
            k=min(options.k, self.layout.padded_size, rows),
        )
        states = self.hidden_states.reshape(-1, self.hidden_states.shape[-1])
        bias = None if self.bias is None else self.bias[:rows]
        return EngineCase(self.engine, self.tp_size, plain, self.weight[:rows], states, bias)

    def projected(self) -> np.ndarray:
        """What the lm_head makes of every row, added columns last, without the bias: float64."""
        states = bits.decode(self.hidden_states.reshape(-1, self.hidden_states.shape[-1]), self.options.dtype)
        if self.options.logits_as_input:
            return states
        with np.errstate(all="ignore"):
            return states @ bits.decode(self.weight, self.options.dtype).T

    def given_logits(self) -> np.ndarray:
        """Patterns of the lm_head's own columns before cap and scale, ``(rows, vocab_size)``; for reports."""
        options = self.options
        logits = self.projected()
        if self.bias is not None and not options.logits_as_input:
            logits = logits + bits.decode(self.bias, options.dtype)
        logits = logits[:, : options.vocab_size]
        missing = options.vocab_size - logits.shape[1]
        return bits.encode(np.pad(logits, ((0, 0), (0, missing))), options.logits_dtype)

    def words(self) -> str:
        """The case in a line: what differs from the plain use first."""
        options, shape = self.options, self.hidden_states.shape
        parts = [f"lm_head of {options.vocab_size} ids"]
        if options.num_added:
            parts[0] += f" and {options.num_added} added"
        if options.processor_vocab_size not in (None, options.vocab_size):
            parts.append(f"the processor's org_vocab_size {options.processor_vocab_size}")
        parts.append(f"padded to {options.padding_size}")
        if self.d2t is not None:
            listed = (np.arange(len(self.d2t)) + self.d2t).tolist()
            parts.append(f"targets {listed if len(listed) <= 8 else 'of a table'}")
        if options.scale != 1.0:
            parts.append(f"scale {options.scale:g}")
        if options.soft_cap is not None:
            parts.append(f"soft cap {options.soft_cap:g}")
        if options.head_dtype is not None:
            parts.append(f"head_dtype {options.head_dtype}")
        if self.bias is not None:
            parts.append("with a bias")
        if options.logits_as_input:
            parts.append("logits as input")
        if options.k is not None:
            parts.append(f"k {options.k}{', log probabilities' if options.log_probs else ''}")
        return f"{', '.join(parts)}; hidden states {shape} {options.dtype}"

    # -- in a file -------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        def words(array: np.ndarray | None) -> Any:
            if array is None:
                return None
            return [json_value(int(pattern), self.options.dtype) for pattern in array.reshape(-1)]

        return {
            "format": FORMAT,
            "engine": self.engine,
            "tp_size": self.tp_size,
            "options": asdict(self.options),
            "hidden_size": int(self.weight.shape[1]),
            "weight": words(self.weight),
            "shape": list(self.hidden_states.shape),
            "hidden_states": words(self.hidden_states),
            "bias": words(self.bias),
            "d2t": None if self.d2t is None else self.d2t.tolist(),
        }

    def to_bytes(self, note: dict[str, str]) -> bytes:
        """A safetensors file with ``note`` beside the case."""
        arrays = {"weight": self.weight, "hidden_states": self.hidden_states, "bias": self.bias, "d2t": self.d2t}
        head = {"format": FORMAT, "engine": self.engine, "tp_size": self.tp_size, "options": asdict(self.options)}
        tensors = {name: np.ascontiguousarray(array) for name, array in arrays.items() if array is not None}
        return save(tensors, metadata={"engine_case": json.dumps(head), **note})

    def to_buffers(self, note: dict[str, str]) -> list[bytes]:
        return header_apart(self.to_bytes(note))

    @classmethod
    def load(cls, path: Path) -> tuple[EngineCase, dict[str, Any]]:
        """The case in a JSON or safetensors file and what was noted beside it. Raises CaseError."""
        with reading(path):
            if path.suffix == ".json":
                document = read_json(path)
                return cls.from_json(document["engine_case"]), document
            with safe_open(str(path), framework="numpy") as file:
                note = read_note(file)
                head = json.loads(note.pop("engine_case"))
                check_format(head["format"], FORMAT)
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                options = EngineOptions(**head["options"])
                return cls(str(head["engine"]), int(head["tp_size"]), options, **arrays), note

    @classmethod
    def from_json(cls, document: Any) -> EngineCase:
        """Raises CaseError."""
        try:
            check_format(document["format"], FORMAT)
            options = EngineOptions(**document["options"])
            if options.dtype not in bits.DTYPES:
                raise CaseError(f"dtype {options.dtype!r} is none of {', '.join(bits.DTYPES)}")

            def array(words: Any, *shape: int) -> np.ndarray:
                if math.prod(shape) > _MOST_VALUES:
                    raise CaseError(f"an array of shape {shape} is more than a case holds")
                patterns = [bits.parse(word, options.dtype) for word in words]
                return np.array(patterns, bits.STORAGE[options.dtype]).reshape(shape)

            bias, d2t = document["bias"], document["d2t"]
            return cls(
                engine=str(document["engine"]),
                tp_size=int(document["tp_size"]),
                options=options,
                weight=array(document["weight"], options.num_embeddings, int(document["hidden_size"])),
                hidden_states=array(document["hidden_states"], *(int(size) for size in document["shape"])),
                bias=None if bias is None else array(bias, options.num_embeddings),
                d2t=None if d2t is None else np.array(d2t, np.int64),
            )
        except CaseError:
            raise
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise CaseError(f"it is no case of an engine: {type(error).__name__}: {error}") from error


def is_engine_case(path: Path) -> bool:
    """Whether a file holds a case of a live engine; False also where it cannot be read."""
    return file_holds(path, "engine_case")
