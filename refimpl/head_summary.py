"""The table of heads at the end of a run: one line a head, path and tp_size, with what its properties came to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

_NUMBERS = (("hidden states", 13), ("tied", 7), ("cross-shard", 11), ("given logits", 12), ("drafted", 7))


@dataclass
class HeadLine:
    """The merged numbers of one head with one path at one tp_size.

    ``known`` and ``conditional``: (kind, reason) to rows.
    """

    starts_from_hidden_states: bool = True
    hidden: Counter[str] = field(default_factory=Counter)
    given: Counter[str] = field(default_factory=Counter)
    drafted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    known: Counter[tuple[str, str]] = field(default_factory=Counter)
    conditional: Counter[tuple[str, str]] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)

    @property
    def rows(self) -> int:
        return self.hidden["rows"] + self.given["rows"]

    @property
    def verdict(self) -> str:
        if self.failed:
            return "REFUTED: " + ", ".join(sorted(self.failed))
        if self.known:
            return "REFUTED as known: " + ", ".join(sorted({kind for kind, _ in self.known}))
        if self.conditional:
            return "CONDITIONAL: " + ", ".join(sorted({kind for kind, _ in self.conditional}))
        if not self.rows and not self.drafted:
            return "refused: " + next(iter(self.refused), "nothing was run")
        if not self.starts_from_hidden_states:
            return "holds on given logits; it has no weights"
        return "holds"


def merge(parts: list[dict[str, Any]]) -> dict[tuple[str, str, int], HeadLine]:
    """All processes' numbers by head, path and tp_size."""
    merged: dict[tuple[str, str, int], HeadLine] = {}
    for part in parts:
        for entry in part["heads"]:
            line = merged.setdefault((entry["head"], entry["path"], entry["tp_size"]), HeadLine())
            line.starts_from_hidden_states = entry["starts_from_hidden_states"]
            line.hidden.update(entry["hidden"])
            line.given.update(entry["given"])
            line.drafted += entry["drafted"]
            line.refused.update(entry["refused"])
            line.failed.update(entry["failed"])
            for kind, reason, rows in entry["known"]:
                line.known[kind, reason] += rows
            for kind, reason, rows in entry["conditional"]:
                line.conditional[kind, reason] += rows
    return merged


def render(parts: list[dict[str, Any]]) -> list[str]:
    merged = merge(parts)
    if not merged:
        return []
    wide = max(4, *(len(head) for head, _, _ in merged))
    far = max(4, *(len(path) for _, path, _ in merged))
    numbers = "  ".join(f"{name:>{width}}" for name, width in _NUMBERS)
    lines = [f"{'head':<{wide}}  {'path':<{far}}  tp  {numbers}  verdict"]
    reasons: dict[str, list[str]] = {}
    for (head, path, tp_size), line in sorted(merged.items()):
        values = (line.hidden["rows"], line.hidden["tied_rows"], line.hidden["cross_shard_ties"], line.given["rows"])
        cells = [f"{v:>{width},}" for v, (_, width) in zip((*values, line.drafted), _NUMBERS, strict=True)]
        lines.append(f"{head:<{wide}}  {path:<{far}}  {tp_size:>2}  {'  '.join(cells)}  {line.verdict}")
        for (kind, reason), rows in sorted(line.known.items()):
            reasons.setdefault(f"known of {head}: {kind}: {reason}", []).append(f"{path} tp {tp_size}: {rows} rows")
        for (kind, reason), rows in sorted(line.conditional.items()):
            reasons.setdefault(f"condition of {head}: {kind}: {reason}", []).append(f"{path} tp {tp_size}: {rows} rows")
        for message, cases in sorted(line.refused.items()):
            if line.rows:
                reasons.setdefault(f"not compared for {head}: {message}", []).append(
                    f"{path} tp {tp_size}: {cases} cases"
                )
    lines += [f"{text} ({'; '.join(where)})" for text, where in reasons.items()]
    filler = sum(line.hidden["filler_rows"] + line.given["filler_rows"] for line in merged.values())
    if filler:
        differs = sum(line.hidden["filler_differs"] + line.given["filler_differs"] for line in merged.values())
        lines.append(
            f"condition all-neg-inf-row of heads: {filler:,} rows under a table were all -inf; on {differs:,} the "
            "answer was the target of draft 0, the full gather's filler id 0 (counted, not judged)"
        )
    return lines
