"""The write-ahead journal: a case is on disk before it runs, so that not even a killed driver loses it.

    .argmax-parity/runs/<run>/journal.jsonl          one line a case, as it ended; the digest of those that did not hold
    .argmax-parity/runs/<run>/running.safetensors    the case that runs now; stays where the run was cut off
    .argmax-parity/cases/<kind>-<digest>.json        minimal failing cases, for ``argmax-parity replay``

Lines are flushed to the operating system, not synchronised to the medium: they outlive any process, not the machine.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any, Protocol

_KEPT_RUNS = 20
INTERRUPTED = 2  # pytest's status


class Recorded(Protocol):
    """What a journal needs of a case, of whatever sort: its content as a file in parts, and its stable name."""

    @property
    def digest(self) -> str: ...

    @property
    def num_rows(self) -> int: ...

    def to_buffers(self, note: dict[str, str]) -> list[bytes] | list[bytes | memoryview]: ...


class Journal:
    """Raises OSError where its folder cannot be written."""

    def __init__(self, root: Path, label: str) -> None:
        self.root = root
        self.cases = root / "cases"
        runs = root / "runs"
        self.folder = runs / f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}-{label}"
        self.cases.mkdir(parents=True, exist_ok=True)
        self.folder.mkdir(parents=True)
        (root / ".gitignore").write_text("*\n")
        self._running = self.folder / "running.safetensors"
        self._file = os.open(self._running, os.O_RDWR | os.O_CREAT, 0o644)
        self._lines = (self.folder / "journal.jsonl").open("a", buffering=1)
        self._number = 0
        self._under_way = False
        self.interrupted: Path | None = None  # the file of the case that an interrupted run was at, once it is closed
        for old in sorted(runs.iterdir())[:-_KEPT_RUNS]:
            if not _is_running(old):  # as all the workers of one pytest-xdist run are
                shutil.rmtree(old, ignore_errors=True)

    def begin(self, case: Recorded, note: dict[str, str]) -> None:
        """Put the case in the place of the one before: in the same file, whose pages the system then need not free.

        The length of the header comes last. A driver that is killed before that was running no case.
        """
        self._number += 1
        self._under_way = True
        length, *rest = case.to_buffers(note)
        os.pwrite(self._file, bytes(8), 0)
        size = 8
        for part in rest:
            view = memoryview(part)
            while view:
                written = os.pwrite(self._file, view, size)
                size, view = size + written, view[written:]
        os.ftruncate(self._file, size)
        os.pwrite(self._file, length, 0)

    def end(self, case: Recorded, note: dict[str, str], outcome: str, **more: Any) -> None:
        self._under_way = False
        if outcome not in ("holds", "refused"):
            more["digest"] = case.digest
        self.line("case", number=self._number, rows=case.num_rows, outcome=outcome, **note, **more)

    def line(self, event: str, **more: Any) -> None:
        self._lines.write(json.dumps({"event": event, "time": round(time.time(), 3), **more}) + "\n")

    def close(self, status: int) -> None:
        self.line("end", status=status)
        self._lines.close()
        os.close(self._file)
        if status == INTERRUPTED and self._under_way:
            self.interrupted = self._running
        else:
            self._running.unlink(missing_ok=True)


def _is_running(folder: Path) -> bool:
    """Whether there is a process of the number that the run of a folder had."""
    _, number, *_ = [*folder.name.split("-"), "none"]
    return Path("/proc", number).exists()
