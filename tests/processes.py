"""Finding every process of a run."""

from __future__ import annotations

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
