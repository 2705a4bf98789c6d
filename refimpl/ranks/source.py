"""Where code under test was loaded from, for certificates: asked of the rank that loaded it."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any


def source_of(name: str) -> dict[str, Any] | None:
    """``file`` and ``sha256`` of a loaded ``package.module:name`` or ``file.py:name``; None where it has no file."""
    where = name.rpartition(":")[0]
    file = where if where.endswith(".py") else getattr(sys.modules.get(where), "__file__", None)
    if not file:
        return None
    try:
        return {"file": str(Path(file).absolute()), "sha256": hashlib.sha256(Path(file).read_bytes()).hexdigest()}
    except OSError:
        return None
