"""``--rank-timeout``: how long a case may take on the ranks, as users write it."""

from __future__ import annotations


def seconds(text: str) -> float:
    """Raises ValueError with one sentence."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0.05 <= found <= 86400:
        raise ValueError(f"--rank-timeout={text}: give seconds from 0.05 to 86400, such as --rank-timeout=30")
    return found
