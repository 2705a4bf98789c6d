"""Finding every process of a run."""

from __future__ import annotations

import time
from pathlib import Path

import psutil


def processes_with(temporary_folder: Path) -> list[psutil.Process]:
    """Those whose TMPDIR is this folder, which no other run was given: its children, wherever they have moved."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TMPDIR") == str(temporary_folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def wait_until_gone(temporary_folder: Path, seconds: float) -> None:
    """Return when none of them is left. Raises AssertionError with those that are after so many seconds."""
    deadline = time.monotonic() + seconds
    while left := processes_with(temporary_folder):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
