"""How many examples an expensive property gets: a fraction of the profile's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import settings

CI_EXAMPLES = 30
NIGHTLY_EXAMPLES = 300


def few(divisor: int) -> Callable[[Any], Any]:
    """Settings for one example in ``divisor`` of the profile's, and at least one."""
    profile = settings.default
    assert profile is not None
    return settings(max_examples=max(1, profile.max_examples // divisor))


def many(factor: int) -> settings:
    """Settings for so many times the profile's examples: for cheap ones that each hold a single batch."""
    profile = settings.default
    assert profile is not None
    return settings(max_examples=profile.max_examples * factor, database=None)


def certifies() -> bool:
    """Whether a verdict may come of this profile: then every obligation needs its least number of rows."""
    profile = settings.default
    assert profile is not None
    return profile.max_examples >= CI_EXAMPLES


def nightly() -> bool:
    """Whether the nightly profile is loaded, in which exhaustive scopes are wider."""
    profile = settings.default
    assert profile is not None
    return profile.max_examples >= NIGHTLY_EXAMPLES
