"""The write-ahead journal: a case is on disk before it runs, so that not even a killed driver loses it.

    .argmax-parity/runs/<run>/journal.jsonl          one line a case, as it ended
    .argmax-parity/runs/<run>/running.safetensors    the case that runs now; gone when the run ended in order
    .argmax-parity/cases/<kind>-<digest>.json        minimal failing cases, for ``argmax-parity replay``

Lines are flushed to the operating system, not synchronised to the medium: they outlive any process, not the machine.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

from refimpl.case import Case

_KEPT_RUNS = 20


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
        self._lines = (self.folder / "journal.jsonl").open("a", buffering=1)
        self._number = 0
        for old in sorted(runs.iterdir())[:-_KEPT_RUNS]:
            shutil.rmtree(old, ignore_errors=True)

    def begin(self, case: Case, note: dict[str, str]) -> None:
        self._number += 1
        new = self._running.with_suffix(".new")
        new.write_bytes(case.to_bytes(note))
        new.replace(self._running)

    def end(self, case: Case, note: dict[str, str], outcome: str, **more: Any) -> None:
        self.line("case", number=self._number, digest=case.digest, rows=case.num_rows, outcome=outcome, **note, **more)

    def line(self, event: str, **more: Any) -> None:
        self._lines.write(json.dumps({"event": event, "time": round(time.time(), 3), **more}) + "\n")

    def close(self, status: int) -> None:
        self.line("end", status=status)
        self._lines.close()
        self._running.unlink(missing_ok=True)
