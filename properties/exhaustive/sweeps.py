"""Scopes too long for one night: cut into stretches, each remembered, so that the next night goes on from there.

A sweep is a range of numbers, each of which stands for a row or two. Its state is a small JSON file of the path, the
tp_size and what the path's source was: another source starts anew.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from properties.exhaustive import columns, payload
from properties.exhaustive.batches import inert
from refimpl import bits
from refimpl.case import Call, Case
from refimpl.session import Checker

Stretch = Iterator[tuple[Call, np.ndarray]]


@dataclass(frozen=True)
class Sweep:
    """``calls(begin, end)``: the rows of numbers begin to end. ``step``: how many numbers a stretch has."""

    name: str
    size: int
    step: int
    calls: Callable[[int, int], Stretch]
    obligation: str
    words: str


def pairs(dtype: str, tp_size: int) -> Sweep:
    """Every 16-bit pattern against every one, on the first and the last rank: both ways round are two of the pairs."""
    layout = payload.between(tp_size, 0, tp_size - 1)

    def calls(begin: int, end: int) -> Stretch:
        scale = payload.every_pattern(dtype)
        numbers = np.arange(begin, end, dtype=np.int64)
        yield payload.duel(layout, dtype, scale[numbers >> 16], scale[numbers & 0xFFFF])

    return Sweep(f"{dtype} pairs", 1 << 32, 1 << 20, calls, "O2", f"every pair of {dtype} patterns, both ways round")


def float32_neighbours(tp_size: int) -> Sweep:
    """Every float32 pattern in the order of the values against the next one, both ways round.

    What keeps every two neighbours apart and in order keeps all values so, if it compares by an order at all.
    """
    layout = payload.between(tp_size, 0, tp_size - 1)
    lowest, highest = -bits.INFINITY["float32"], bits.INFINITY["float32"]
    size = highest - lowest

    def calls(begin: int, end: int) -> Stretch:
        numbers = np.arange(begin, end, dtype=np.int64) + lowest
        low, high = bits.from_ordinal(numbers, "float32"), bits.from_ordinal(numbers + 1, "float32")
        yield payload.duel(layout, "float32", low, high)
        yield payload.duel(layout, "float32", high, low)

    words = "every two neighbouring numbers of float32, both ways round"
    return Sweep("float32 neighbours", size, 1 << 19, calls, "O2", words)


def float32_nans(tp_size: int) -> Sweep:
    """Every NaN of float32 against +inf, which it beats, and against the plain NaN, with which it ties; both ways."""
    layout = payload.between(tp_size, 0, tp_size - 1)
    infinity = bits.INFINITY["float32"]
    of_one_sign = (1 << 31) - infinity - 1

    def calls(begin: int, end: int) -> Stretch:
        numbers = np.arange(begin, end, dtype=np.int64)
        sign = np.where(numbers >= of_one_sign, 1 << 31, 0)
        nans = (numbers % of_one_sign + infinity + 1 | sign).astype(np.uint32)
        for other in (infinity, bits.NAN["float32"]):
            against = np.full_like(nans, other)
            yield payload.duel(layout, "float32", nans, against)
            yield payload.duel(layout, "float32", against, nans)

    words = "every NaN of float32 against infinity and the plain NaN, both ways round"
    return Sweep("float32 NaNs", 2 * of_one_sign, 1 << 18, calls, "O2", words)


def every_column(width: int, dtype: str, tp_size: int) -> Sweep:
    """Every column of a wide shard of the last rank as its only winner."""
    layout = columns.on_one_rank(width, tp_size, tp_size - 1)

    def calls(begin: int, end: int) -> Stretch:
        return columns.peaks(layout, dtype, inert(dtype), range(begin, end))

    words = f"every winning column of a shard of {width:,} columns in {dtype}"
    return Sweep(f"columns of {width} {dtype}", width, 64, calls, "O1", words)


def all_sweeps(tp_size: int) -> list[Sweep]:
    found = [pairs("bfloat16", tp_size), pairs("float16", tp_size)]
    found += [float32_neighbours(tp_size), float32_nans(tp_size)]
    for width in (width for width in columns.WIDTHS if width not in columns.widths(2, True)):
        found += [every_column(width, dtype, tp_size) for dtype in bits.DTYPES]
    return found


class Progress:
    """How far each sweep of one path at one tp_size has come. Raises OSError where it cannot be written."""

    def __init__(self, file: Path, source: str) -> None:
        self.file, self.source = file, source
        self.done: dict[str, int] = {}
        try:
            state: dict[str, Any] = json.loads(file.read_text())
            if state["source"] == source:
                self.done = {str(name): int(number) for name, number in state["done"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass  # none yet, or none that can be read: start anew

    def share(self, sweep: Sweep) -> float:
        return self.done.get(sweep.name, 0) / sweep.size

    def record(self, sweep: Sweep, end: int) -> None:
        self.done[sweep.name] = end
        self.file.parent.mkdir(parents=True, exist_ok=True)
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps({"source": self.source, "done": self.done}, indent=1) + "\n")
        new.replace(self.file)


def go_on(check: Checker, sweeps: list[Sweep], progress: Progress, seconds: float, say: Callable[[str], None]) -> None:
    """Stretch by stretch of the sweep that is furthest from its end, until the time is up or all have ended.

    A stretch is recorded once it has held. ``say``: told about every half minute.
    """
    started = told = time.monotonic()
    rows = 0
    while (now := time.monotonic()) - started < seconds and check.refused is None:
        left = [sweep for sweep in sweeps if progress.share(sweep) < 1]
        if not left:
            return
        sweep = min(left, key=progress.share)
        begin = progress.done.get(sweep.name, 0)
        end = min(begin + sweep.step, sweep.size)
        for call, right in sweep.calls(begin, end):
            # Constructed answers alone: what NumPy and the full gather say of such rows, the shorter scopes have shown.
            check.known(Case((call,)), (right,), label=None)
            rows += call.batch
        progress.record(sweep, end)
        if now - told > 30:
            told = now
            share = ", ".join(f"{s.name} {progress.share(s):.2%}" for s in sweeps if progress.share(s) > 0)
            say(f"{rows / (now - started):,.0f} rows/s; {share}")
