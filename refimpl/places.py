"""Whether a name that a user gave is that of a file or a folder; one that no system takes as a name is of neither."""

from __future__ import annotations

from pathlib import Path


def is_file(name: str | Path) -> bool:
    try:
        return Path(name).is_file()
    except (OSError, ValueError):  # too long, or with a zero byte
        return False


def is_dir(name: str | Path) -> bool:
    try:
        return Path(name).is_dir()
    except (OSError, ValueError):
        return False


def exists(name: str | Path) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):
        return False


def no_regular_file(file: Path) -> str | None:
    """Why a file is not to be read: of a pipe or a device there may be no end. Raises OSError."""
    file.stat()
    return None if file.is_file() else "it is no regular file" if not file.is_dir() else "it is a folder"
