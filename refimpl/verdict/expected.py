"""Expected divergences: on which rows a path is known to answer otherwise, of which kinds, and why.

They are for paths that reproduce an engine with its corner cases. A finding whose kind and rows a line foresees is set
aside and counted; the test that met one ends as an expected failure, never as passed, and whatever no line foresees
fails as ever. So a known corner case hides nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from refimpl import bits
from refimpl.case import Call, Case
from refimpl.verdict.judge import Finding
from refimpl.verdict.kinds import Kind

SHIPPED = Path(__file__).resolve().parents[1] / "paths" / "expected_divergences.txt"


class ExpectedError(ValueError):
    """A line of the file cannot be read: one sentence that names it."""


@dataclass(frozen=True)
class Expected:
    """One line: what ``path`` is known to do where ``condition`` holds."""

    path: str
    condition: str
    kinds: frozenset[Kind]
    reason: str

    @property
    def identity(self) -> str:
        return f"{self.path}[{self.condition}]"

    @property
    def obligation(self) -> str:
        return OBLIGATIONS[self.condition]


# -- conditions: of a call, which rows -------------------------------------------------------------------------------


def _holds_nan(call: Call) -> np.ndarray:
    return np.asarray(bits.is_nan(call.logits, call.dtype).any(axis=1))


def _both_zeros(call: Call) -> np.ndarray:
    """The greatest value is zero, in both signs."""
    greatest = np.where(_holds_nan(call), 1, bits.ordinal(call.logits, call.dtype).max(axis=1))
    positive = (call.logits == 0).any(axis=1)
    negative = (call.logits == bits.sign_bit(call.dtype)).any(axis=1)
    return np.asarray((greatest == 0) & positive & negative)


def _has_padding(call: Call) -> bool:
    return any(call.num_padding)


def _has_empty_shard(call: Call) -> bool:
    return any(start == end for start, end in call.layout.bounds)


def _lowest_beside_empty_shard(call: Call) -> np.ndarray:
    """No value above the lowest finite one, and a shard without real columns."""
    if not _has_empty_shard(call):
        return np.zeros(call.batch, bool)
    return np.asarray(bits.ordinal(call.logits, call.dtype).max(axis=1) <= 1 - bits.INFINITY[call.dtype]) & ~_holds_nan(
        call
    )


def _beyond_float32(call: Call) -> bool:
    return call.layout.vocab_size - 1 > 2**24


_OF_ROWS: dict[str, Callable[[Call], np.ndarray]] = {
    "nan": _holds_nan,
    "both-zeros": _both_zeros,
    "lowest-beside-empty-shard": _lowest_beside_empty_shard,
}
# Conditions of whole calls may also foresee an end without an answer, which is about no row.
_OF_CALLS: dict[str, Callable[[Call], bool]] = {
    "padding": _has_padding,
    "empty-shard": _has_empty_shard,
    "beyond-float32": _beyond_float32,
}
CONDITIONS = (*_OF_ROWS, *_OF_CALLS)
# The obligation that a divergence under each condition refutes.
OBLIGATIONS = {
    "nan": "O2",
    "both-zeros": "O2",
    "beyond-float32": "O2",
    "lowest-beside-empty-shard": "O1",
    "padding": "O4",
    "empty-shard": "O7",
}


def _foreseen(condition: str, call: Call) -> np.ndarray:
    """bool ``(batch,)``: the rows on which the condition holds."""
    return _OF_ROWS[condition](call) if condition in _OF_ROWS else np.full(call.batch, _OF_CALLS[condition](call))


# -- the file --------------------------------------------------------------------------------------------------------


def parse(text: str) -> tuple[Expected, ...]:
    """Lines of ``path[condition]  # kind, kind: reason``. Raises ExpectedError."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        identity, _, comment = (part.strip() for part in line.partition("#"))
        if not identity:
            continue
        match = re.fullmatch(r"(.+)\[([a-z0-9-]+)\]", identity)
        words, colon, reason = (part.strip() for part in comment.partition(":"))
        if match is None or not colon or not reason:
            raise ExpectedError(f"line {number}: {line!r} is not of the form 'path[condition]  # kinds: reason'")
        if match[2] not in CONDITIONS:
            raise ExpectedError(f"line {number}: condition {match[2]!r} is none of {', '.join(CONDITIONS)}")
        kinds = [word.strip() for word in words.split(",")]
        unknown = [kind for kind in kinds if kind not in list(Kind)]
        if unknown:
            raise ExpectedError(
                f"line {number}: {unknown[0]!r} is no failure kind; give kinds of docs/failure-kinds.md, separated by "
                "commas, before the colon"
            )
        found.append(Expected(match[1], match[2], frozenset(map(Kind, kinds)), reason))
    return tuple(found)


def shipped() -> tuple[Expected, ...]:
    return parse(SHIPPED.read_text())


# -- setting aside ---------------------------------------------------------------------------------------------------


def set_aside(
    lines: Iterable[Expected], case: Case, findings: Iterable[Finding]
) -> tuple[list[Finding], dict[str, int]]:
    """What of the findings no line foresees, and on how many rows each line's divergence was met."""
    lines = tuple(lines)
    left: list[Finding] = []
    met: dict[str, int] = {}
    for finding in findings:
        call = case.calls[finding.call]
        rest: Finding | None = finding
        for line in lines:
            if rest is None or finding.kind not in line.kinds:
                continue
            if finding.rows:
                foreseen = _foreseen(line.condition, call)
                rows = tuple(row for row in rest.rows if not foreseen[row])
                if len(rows) < len(rest.rows):
                    met[line.identity] = met.get(line.identity, 0) + len(rest.rows) - len(rows)
                    rest = replace(rest, rows=rows) if rows else None
            elif line.condition in _OF_CALLS and _OF_CALLS[line.condition](call):
                met[line.identity] = met.get(line.identity, 0) + call.batch
                rest = None
        if rest is not None:
            left.append(rest)
    return left, met


def without_foreseen(lines: Iterable[Expected], case: Case) -> Case:
    """The case without the rows on which a line's condition holds: what failed beside them, by itself."""
    calls = []
    for call in case.calls:
        foreseen = np.zeros(call.batch, bool)
        for line in lines:
            foreseen |= _foreseen(line.condition, call)
        calls.append(call.rows(~foreseen))
    return replace(case, calls=tuple(calls))
