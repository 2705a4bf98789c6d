"""How long code under test may take on the ranks: for a case, and until it is imported and set up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Seconds. ``case``: ``--rank-timeout``, for a case. ``setup``: ``--setup-timeout``, for import and setup."""

    case: float = 10.0
    setup: float = 120.0

    @classmethod
    def of(cls, case: str | None, setup: str | None) -> Limits:
        """As users write them; None is the default. Raises ValueError with one sentence."""
        return cls(
            cls.case if case is None else seconds(case, "--rank-timeout"),
            cls.setup if setup is None else seconds(setup, "--setup-timeout"),
        )


def seconds(text: str, option: str) -> float:
    """Raises ValueError with one sentence."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0.05 <= found <= 86400:
        raise ValueError(f"{option}={text}: give seconds from 0.05 to 86400, such as {option}=30")
    return found
