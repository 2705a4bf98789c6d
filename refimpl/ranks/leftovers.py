"""Shared memory and sockets that code under test makes: they outlive a killed process, so they carry the run's name.

The supervisor of the run removes what carries it when the run ends, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from collections.abc import Iterator
from multiprocessing import shared_memory
from pathlib import Path

_RUN = "ARGMAX_PARITY_RUN"
_MEMORY = Path("/dev/shm")


def set_run(run: str) -> None:
    """In the fork server, before it forks: all executors inherit the name."""
    os.environ[_RUN] = run


def prefix() -> str:
    """What names of shared memory and of sockets begin with."""
    return f"argmax-parity-{os.environ.get(_RUN, 'alone')}-"


@contextlib.contextmanager
def named_after_the_run() -> Iterator[None]:
    """Python's own segments are called ``psm_`` and a random number, which belongs to nobody once their maker is dead.

    Sockets of engines that ask for a folder (vLLM) come below one of the run's.
    """
    folder = Path(tempfile.gettempdir()) / f"{prefix()}sockets"
    folder.mkdir(exist_ok=True)
    os.environ["VLLM_RPC_BASE_PATH"] = str(folder)
    name = "_make_filename"  # no public way; without it such a segment stays after a kill in the middle
    before = getattr(shared_memory, name, None)
    if before is not None:
        setattr(shared_memory, name, lambda: f"/{prefix()}{secrets.token_hex(6)}")
    try:
        yield
    finally:
        if before is not None:
            setattr(shared_memory, name, before)


def unlink_mapped() -> None:
    """Take the names off the run's segments that this process has mapped; the memory lives as long as it is mapped."""
    start = f"{_MEMORY}/"
    with open("/proc/self/maps") as maps:
        mapped = {words[5] for line in maps if len(words := line.split()) > 5 and words[5].startswith(start)}
    for segment in mapped:
        if Path(segment).name.startswith(prefix()):
            with contextlib.suppress(OSError):
                os.unlink(segment)


def remove(run: str) -> None:
    """Whatever carries the run's name and is still there."""
    import shutil

    start = f"argmax-parity-{run}-"
    for folder in (_MEMORY, Path(tempfile.gettempdir())):
        with contextlib.suppress(OSError):
            for left in folder.glob(f"{start}*"):
                if left.is_dir():
                    shutil.rmtree(left, ignore_errors=True)
                else:
                    left.unlink(missing_ok=True)
