"""How many examples an expensive property gets: a fraction of the profile's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import settings


def few(divisor: int) -> Callable[[Any], Any]:
    """Settings for one example in ``divisor`` of the profile's, and at least one."""
    profile = settings.default
    assert profile is not None
    return settings(max_examples=max(1, profile.max_examples // divisor))
