"""The table at the end of a run: what was compared, per path and tp_size, merged over all processes."""

from __future__ import annotations

from collections import Counter
from typing import Any

_COLUMNS = (
    ("path", 24),
    ("tp", 3),
    ("cases", 7),
    ("rows", 11),
    ("tied", 9),
    ("cross-shard", 11),
    ("NaN", 9),
    ("refused", 7),
    ("failures", 8),
)


def merge(parts: list[dict[str, Any]]) -> dict[tuple[str, int], Counter[str]]:
    """All processes' numbers by path and tp_size."""
    merged: dict[tuple[str, int], Counter[str]] = {}
    for part in parts:
        for tally in part["tallies"]:
            numbers = merged.setdefault((tally["path"], tally["tp_size"]), Counter())
            numbers.update(tally["rows"])
            for name in ("cases", "refused", "repeated"):
                numbers[name] += tally[name]
            for kind, count in tally["kinds"].items():
                numbers[f"kind {kind}"] += count
    return merged


def compared(parts: list[dict[str, Any]]) -> int:
    """Rows that were compared with the reference."""
    from_hidden_states = sum(head["hidden"]["rows"] for part in parts for head in part["heads"])
    return from_hidden_states + sum(numbers["rows"] for numbers in merge(parts).values())


def render(parts: list[dict[str, Any]]) -> list[str]:
    merged = merge(parts)
    lines = ["  ".join(f"{name:<{width}}" if name == "path" else f"{name:>{width}}" for name, width in _COLUMNS)]
    for (path, tp_size), numbers in sorted(merged.items()):
        kinds = [name.removeprefix("kind ") for name in numbers if name.startswith("kind ")]
        values = (
            path if len(path) <= 24 else "…" + path[-23:],
            tp_size,
            f"{numbers['cases']:,}",
            f"{numbers['rows']:,}",
            f"{numbers['tied_rows']:,}",
            f"{numbers['cross_shard_ties']:,}",
            f"{numbers['nan_rows']:,}",
            f"{numbers['refused']:,}",
            len(kinds),
        )
        cells = zip(values, _COLUMNS, strict=True)
        lines.append("  ".join(f"{v:<{width}}" if name == "path" else f"{v!s:>{width}}" for v, (name, width) in cells))
        if kinds:
            lines.append("    kinds: " + ", ".join(sorted(kinds)))
    lines += _expected_divergences(parts)
    filler = sum(numbers["filler_rows"] for numbers in merged.values())
    if filler:
        differs = sum(numbers["filler_differs"] for numbers in merged.values())
        lines.append(
            f"condition all-neg-inf-row: {filler:,} rows under a table were all -inf; on {differs:,} the path gave the "
            "target of draft 0, the reference filler id 0 (counted, not judged)"
        )
    refusals: Counter[str] = Counter()
    for part in parts:
        for tally in part["tallies"]:
            refusals.update(tally["refusals"])
    lines += [f"refused {count} times: {message}" for message, count in refusals.most_common(5)]
    lines += sorted({note for part in parts for note in part["notes"]})
    return lines


def _expected_divergences(parts: list[dict[str, Any]]) -> list[str]:
    """A line for each that was met, and for each that was not: it may have been mended."""
    met: Counter[str] = Counter()
    for part in parts:
        for tally in part["tallies"]:
            met.update(tally["set_aside"])
    paths = {tally["path"] for part in parts for tally in part["tallies"]}
    lines = []
    for path, identity, reason in dict.fromkeys(tuple(line) for part in parts for line in part["expected"]):
        if met[identity]:
            lines.append(f"expected divergence {identity} on {met[identity]:,} rows: {reason}")
        elif path in paths:
            lines.append(f"expected divergence {identity} did not show; if it never does, take it off the list")
    return lines
