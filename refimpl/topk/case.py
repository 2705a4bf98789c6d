"""A top-k case: calls of one path, each with its k, how it is kept in a file, and how the ranks are asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from refimpl import loading
from refimpl.case import Call, Case, CaseError, check_format, file_holds, read_json, reading
from refimpl.ranks.generations import Spec
from refimpl.ranks.outcome import Run
from refimpl.ranks.runtime import Ranks

FORMAT = "argmax-parity/topk-case/1"
_GREATEST_K = 1 << 31


@dataclass(frozen=True, eq=False)
class TopKCall:
    """One call: logits and layout as of any case, and k."""

    call: Call
    k: int

    def rows(self, index: Any) -> TopKCall:
        return replace(self, call=self.call.rows(index))


@dataclass(frozen=True, eq=False)
class TopKCase:
    """Calls made one after the other by ranks of one generation, all of one tp_size."""

    calls: tuple[TopKCall, ...]

    @property
    def tp_size(self) -> int:
        return self.plain.tp_size

    @property
    def num_rows(self) -> int:
        return self.plain.num_rows

    @cached_property
    def plain(self) -> Case:
        """The calls without their k."""
        return Case(tuple(entry.call for entry in self.calls))

    @property
    def ks(self) -> list[int]:
        return [entry.k for entry in self.calls]

    @cached_property
    def digest(self) -> str:
        """A stable name of the case's content."""
        return hashlib.blake2b(f"{self.plain.digest}{self.ks}".encode(), digest_size=12).hexdigest()

    # -- in a file: the plain case, and beside it the k of each call ---------------------------------------------

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "k": self.ks, "case": self.plain.to_json()}

    @classmethod
    def from_json(cls, document: Any) -> TopKCase:
        """Raises CaseError."""
        try:
            return cls._with_ks(Case.from_json(document["case"]), document)
        except (KeyError, TypeError) as error:
            raise CaseError(f"it is no top-k case: {type(error).__name__}: {error}") from error

    @classmethod
    def _with_ks(cls, plain: Case, head: Any) -> TopKCase:
        check_format(head["format"], FORMAT)
        ks = head["k"]
        if not isinstance(ks, list) or len(ks) != len(plain.calls):
            raise CaseError(f"k is {ks!r}, it must be a list of one number for each of {len(plain.calls)} call(s)")
        for k in ks:
            if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k < _GREATEST_K:
                raise CaseError(f"k is {k!r}, it must be a whole number of 1 or more")
        return cls(tuple(TopKCall(call, k) for call, k in zip(plain.calls, ks, strict=True)))

    def to_buffers(self, note: dict[str, str]) -> list[bytes | memoryview]:
        """A safetensors file in parts, as `refimpl.case.Case.to_buffers`."""
        return self.plain.to_buffers({**note, "topk_case": json.dumps({"format": FORMAT, "k": self.ks})})

    def to_bytes(self, note: dict[str, str]) -> bytes:
        return b"".join(self.to_buffers(note))

    @classmethod
    def load(cls, path: Path) -> tuple[TopKCase, dict[str, Any]]:
        """The case in a JSON or safetensors file and what was noted beside it. Raises CaseError."""
        with reading(path):
            if path.suffix == ".json":
                document = read_json(path)
                return cls.from_json(document["topk_case"]), document
            plain, note = Case.load(path)
            return cls._with_ks(plain, json.loads(note.pop("topk_case"))), note


def is_topk_case(path: Path) -> bool:
    """Whether a file holds a top-k case; False also where it cannot be read."""
    return file_holds(path, "topk_case")


def run(ranks: Ranks, case: TopKCase, path: str, *, count: bool = False, limit: float | None = None) -> Run:
    """What the ranks do with a case. Raises RanksUnavailable, PathUnusable.

    Of each call ``reference`` and ``tokens`` are int64 ``(2, batch, k)``: ids, and the values' bit patterns.
    """

    def orders() -> Iterator[tuple[dict[str, Any], list[np.ndarray]]]:
        for rank in range(case.tp_size):
            calls: list[dict[str, Any]] = []
            arrays: list[np.ndarray] = []
            for entry in case.calls:
                call = entry.call
                head: dict[str, Any] = {"bounds": call.layout.bounds, "padded_size": call.layout.padded_size}
                head |= {"dtype": call.dtype, "k": entry.k, "logits": len(arrays), "d2t": None}
                arrays.append(call.local_logits(rank))
                if call.d2t is not None:
                    head["d2t"] = len(arrays)
                    arrays.append(call.d2t)
                calls.append(head)
            yield {"do": "topk", "calls": calls, "count": count}, arrays

    return ranks.run_orders(Spec(loading.qualified(path), case.tp_size), orders(), limit)
