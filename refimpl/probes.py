"""Directed rows: what a path does on each known corner, asked on two real ranks and put into words.

A probe is a handful of tiny calls with one right token each. Its word stands where every answer is right; where one is
not, the answer itself is given, so nothing here knows what any path is supposed to get wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from refimpl import bits
from refimpl.case import Call, Case
from refimpl.ranks.outcome import Run
from refimpl.ranks.runtime import Ranks
from refimpl.verdict.judge import expected
from refimpl.vocab.d2t import offsets
from refimpl.vocab.layouts import Layout, layout_from_sizes

TP_SIZE = 2
_EVEN = layout_from_sizes((2, 2))
_PADDED = Layout(((0, 2), (2, 3)), 2)
_EMPTY = Layout(((0, 2), (2, 2)), 2)
_UNEVEN = Layout(((0, 0), (0, 3)), 3)
_QUIET, _LARGE, _SIGN = 0x7FC00000, 0x7FFFFFFF, 0x80000000


@dataclass(frozen=True)
class Ask:
    """One call of one row and what it is about."""

    about: str
    call: Call


@dataclass(frozen=True)
class Answer:
    """What all ranks gave: a token, or words where there is none. ``right``: the token the rules ask for."""

    about: str
    token: int | None
    words: str
    right: int

    @property
    def is_right(self) -> bool:
        return self.token == self.right


def _row(about: str, layout: Layout, *values: float | int, padding: float = 0.0, d2t: tuple[int, ...] = ()) -> Ask:
    """A row of float32; an integer stands for a bit pattern."""
    patterns = [v if isinstance(v, int) else int(bits.encode(np.array(v), "float32")) for v in values]
    table = offsets(np.array(d2t)) if d2t else None
    pads = (int(bits.encode(np.array(padding), "float32")),)
    return Ask(about, Call(layout, "float32", np.array([patterns], np.uint32), pads, table))


def ties() -> list[Ask]:
    return [
        _row("inside a shard", _EVEN, 1.0, 1.0, 0.0, 0.0),
        _row("across shards", _EVEN, 0.0, 1.0, 1.0, 0.0),
        _row("of all columns", _EVEN, -3.0, -3.0, -3.0, -3.0),
        _row("of -inf", _EVEN, -np.inf, -np.inf, -np.inf, -np.inf),
    ]


def nans() -> list[Ask]:
    return [
        _row("a NaN", _EVEN, np.inf, 0.0, _QUIET, 0.0),
        _row("a negative NaN", _EVEN, 0.0, 1.0, _QUIET | _SIGN, 0.0),
        _row("two NaNs", _EVEN, 0.0, _QUIET, _LARGE, np.inf),
    ]


def zeros() -> list[Ask]:
    return [
        _row("-0.0, 0.0", _EVEN, -1.0, _SIGN, 0.0, -1.0),
        _row("0.0, -0.0", _EVEN, -1.0, 0.0, _SIGN, -1.0),
        _row("inside a shard", _EVEN, _SIGN, 0.0, -1.0, -1.0),
    ]


def padding() -> list[Ask]:
    return [
        _row("padding of 0", _PADDED, -3.0, -2.0, -1.0),
        _row("padding of NaN", _PADDED, 3.0, 2.0, 1.0, padding=np.nan),
        _row("padding of +inf", _PADDED, 1.0, 2.0, np.inf, padding=np.inf),
    ]


def empty_shard() -> list[Ask]:
    lowest = bits.sign_bit("float32") | (bits.INFINITY["float32"] - 1)
    return [
        _row("any row", _EMPTY, 1.0, 2.0, padding=-np.inf),
        _row("all -inf", _EMPTY, -np.inf, -np.inf, padding=-np.inf),
        _row("lowest finite", _EMPTY, -np.inf, lowest, padding=-np.inf),
    ]


def uneven() -> list[Ask]:
    return [_row("(0, 3) columns", _UNEVEN, 1.0, 3.0, 2.0)]


def tables() -> list[Ask]:
    """The rule is read off the last answer, see `d2t_words`."""
    return [
        _row("a rising table", _EVEN, 0.0, 1.0, 1.0, 0.0, d2t=(1, 4, 6, 7)),
        _row("an unsorted table", _EVEN, 0.0, 1.0, 1.0, 0.0, d2t=(0, 5, 3, 7)),
    ]


def beyond_float32() -> list[Ask]:
    vocab_size = 2**24 + 4
    low, high = (int(p) for p in bits.encode(np.array([-1.0, 1.0]), "bfloat16"))
    logits = np.full((1, vocab_size), low, np.uint16)
    logits[0, 2**24 + 1] = high
    return [Ask("id 2^24 + 1", Call(layout_from_sizes((vocab_size // 2,) * 2), "bfloat16", logits))]


@dataclass(frozen=True)
class Probe:
    """A column of the table: its rows, and the word for right answers. ``cheap``: asks nothing wide."""

    title: str
    asks: Callable[[], list[Ask]]
    word: str
    cheap: bool = True


PROBES = (
    Probe("tie", ties, "lowest id"),
    Probe("NaN", nans, "first NaN wins"),
    Probe("signed zeros", zeros, "equal"),
    Probe("padding", padding, "left out"),
    Probe("empty shard", empty_shard, "never wins"),
    Probe("uneven shards", uneven, "right"),
    Probe("D2T", tables, "lowest target id"),
    Probe("ids past 2^24", beyond_float32, "right", cheap=False),
)


def ask(ranks: Ranks, path: str, asks: list[Ask]) -> list[Answer]:
    """Every row by itself: what raises or hangs must not keep the next one from being asked."""
    return [answer_of(ranks.run(Case((entry.call,)), path), entry) for entry in asks]


def answer_of(run: Run, entry: Ask) -> Answer:
    """What a run gave for one row."""
    right = int(expected(entry.call, "target_id").tokens[0])
    outcomes = [rank.calls[-1] if rank.calls else None for rank in run.ranks]
    statuses = sorted({"no answer" if outcome is None else outcome.status for outcome in outcomes})
    tokens = {int(o.tokens[0]) for o in outcomes if o is not None and o.tokens is not None}
    if statuses == ["answered"] and len(tokens) == 1:
        (token,) = tokens
        return Answer(entry.about, token, f"{token} in place of {right}", right)
    words = "ranks differ" if statuses == ["answered"] else _status_words(statuses)
    return Answer(entry.about, None, words, right)


def _status_words(statuses: list[str]) -> str:
    if "raised" in statuses:
        return "raises" if statuses == ["raised"] else "raises on a rank"
    return statuses[0] if len(statuses) == 1 else " and ".join(statuses)


def words(probe: Probe, answers: list[Answer]) -> str:
    """One cell."""
    if all(answer.words == "refused" for answer in answers):
        return "refused"
    if probe.asks is tables and answers[0].is_right and answers[1].token == 5:
        return "lowest draft id, mapped"
    if all(answer.is_right for answer in answers):
        return probe.word
    return "; ".join(f"**{answer.about}: {answer.words}**" for answer in answers if not answer.is_right)
