"""What one rank did with a case: plain observations, no judgement."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# What a row of `CallOutcome.ties` says of the row in its third place.
NAN_ROW, NEG_INF_ROW = 1, 2


@dataclass(frozen=True, eq=False)
class CallOutcome:
    """One call on one rank.

    ``status``: answered, refused, raised, wrong form. ``issued``: collectives the tested group counted during the
    call, negative where the backend does not count. ``modified``: ``(row, column)`` of the first changed real column.

    From hidden states: ``logits_differ``: the first ``(row, column)`` at which the logits made for the path are not the
    reference's. ``ties``: int64 ``(batch, 3)``, columns that tie at the top, shards that hold one, and 1 for a row with
    a NaN, 2 for one that is all -inf. ``truth``: of an engine that answers for itself, the argmax of the head's logits.
    ``logits``: bit patterns of these, where they were asked for.
    """

    status: str
    reference: np.ndarray | None = None
    tokens: np.ndarray | None = None
    overwritten: np.ndarray | None = None
    message: str = ""
    error_type: str = ""
    traceback: str = ""
    issued: int = 0
    collectives: tuple[tuple[str, int], ...] | None = None
    modified: tuple[int, int] | None = None
    table_modified: bool = False
    logits_differ: tuple[int, int] | None = None
    ties: np.ndarray | None = None
    truth: np.ndarray | None = None
    logits: np.ndarray | None = None


@dataclass(frozen=True)
class Died:
    """The rank's process ended by itself: by a signal, or with an exit status."""

    signal: int | None
    status: int | None
    tail: str = ""

    @property
    def how(self) -> str:
        if self.signal is None:
            return f"exit status {self.status}"
        try:
            return signal.Signals(self.signal).name
        except ValueError:
            return f"signal {self.signal}"


@dataclass(frozen=True)
class Stuck:
    """The rank gave no answer within the limit; ``stack`` is where it waited."""

    seconds: float
    stack: str = ""

    @property
    def where(self) -> str:
        """The innermost line of the path itself, or what the rank was doing for the suite."""
        frames = self._frames
        if self.in_reference:
            return "the reference's collectives: another rank did not reach them"
        for file, line, function in frames:
            if "/torch/" not in file and not file.startswith("<") and not file.endswith("/paths/collectives.py"):
                if file.endswith(("/ranks/executor.py", "/ranks/wire.py")):
                    return "waiting for the next case" if function in ("main", "next") else "the suite's own code"
                return f"{'/'.join(file.split('/')[-2:])}:{line} in {function}"
        return "unknown: the process does not run Python code" if not frames else "torch"

    @property
    def in_collective(self) -> bool:
        """Whether the innermost frame is torch.distributed: such a rank waits for others and nothing else."""
        return bool(self._frames) and "/torch/distributed/" in self._frames[0][0]

    @property
    def in_reference(self) -> bool:
        """Whether it is the reference that waits: for a rank that left before this call, or only for its bytes."""
        return any(function == "run_reference" for _, _, function in self._frames)

    @property
    def _frames(self) -> list[tuple[str, str, str]]:
        """File, line and function of the main thread, innermost first."""
        return _FRAME.findall(self.stack.split("Current thread", 1)[-1].split("\n\n")[0])


def never_answers(waits: Sequence[Stuck], seconds: float) -> bool:
    """Whether ranks that still wait, so long after another one failed, will do so for good.

    In a collective of the path they wait for the one that failed. In the reference that is so too if the failure was in
    an earlier call; in the same call they come through, and take their time where much is gathered on a busy machine.
    """
    return all(wait.in_collective for wait in waits) and (
        seconds >= REFERENCE_SECONDS or not any(wait.in_reference for wait in waits)
    )


REFERENCE_SECONDS = 1.0
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')


@dataclass(frozen=True, eq=False)
class RankOutcome:
    """One rank and a case: the calls it got through, and how it ended if it did not get through all.

    Of a drafting loop: ``loops``, the arrays of `refimpl.ranks.drafting`, empty where it did not come to its end, and
    ``reached``, the draft step that the rank came to last and whose it was, in words.
    """

    calls: tuple[CallOutcome, ...] = ()
    end: Died | Stuck | None = None
    loops: tuple[np.ndarray, ...] = ()
    reached: tuple[int, str] | None = None


@dataclass(frozen=True, eq=False)
class Run:
    """All ranks of the tested group and one case, in rank order."""

    ranks: tuple[RankOutcome, ...]
    limit: float

    @property
    def complete(self) -> bool:
        """Every rank answered or refused every call it was given: the generation can go on."""
        return all(
            rank.end is None and all(c.status in ("answered", "refused") for c in rank.calls) for rank in self.ranks
        )


def from_wire(head: dict[str, Any], arrays: list[np.ndarray]) -> RankOutcome:
    calls = []
    for entry in head["calls"]:

        def array(name: str, entry: dict[str, Any] = entry) -> np.ndarray | None:
            return arrays[entry[name]] if name in entry else None

        calls.append(
            CallOutcome(
                status=entry["status"],
                reference=array("reference"),
                tokens=array("tokens"),
                overwritten=array("overwritten"),
                message=entry.get("message", ""),
                error_type=entry.get("type", ""),
                traceback=entry.get("traceback", ""),
                issued=entry.get("issued", -1),
                collectives=None
                if entry.get("collectives") is None
                else tuple((name, size) for name, size in entry["collectives"]),
                table_modified=entry.get("table_modified", False),
                modified=None if entry.get("modified") is None else tuple(entry["modified"]),
                logits_differ=None if entry.get("logits_differ") is None else tuple(entry["logits_differ"]),
                ties=array("ties"),
                truth=array("truth"),
                logits=array("logits"),
            )
        )
    return RankOutcome(tuple(calls), loops=tuple(arrays[place] for place in head.get("loops", [])))
