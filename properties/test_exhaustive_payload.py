"""What is sent, exhaustively: values against values and ids against ids, through the real exchange."""

from __future__ import annotations

import pytest

from properties.exhaustive import payload
from properties.exhaustive.batches import run
from properties.strategies.effort import nightly
from refimpl.session import Checker

pytestmark = pytest.mark.obligations("O2")


def test_values(check: Checker) -> None:
    """Neighbours and landmarks, both ways round and tied; every 16-bit pattern against every landmark."""
    run(check, payload.values(check.tp_size, nightly()))
    across = "; every 16-bit pattern on the first rank against every landmark on the last"
    across += " and the other way round" if nightly() else ""
    check.proved(
        "O2",
        "values",
        "landmarks against landmarks (50 to 54 a dtype: zeros, subnormals, ones, extremes, infinities, NaNs, powers of "
        "two) and every two neighbours of the 16-bit dtypes (of float32 those around landmarks), both ways round, on "
        f"every two ranks and inside a shard{across if check.tp_size > 1 else ''}",
    )


def test_ids(check: Checker) -> None:
    """Ids where number formats end, each against each, with values near to each other and tied."""
    run(check, payload.ids(check.tp_size, nightly()))
    scope = "every two of 0, 2^7, 2^8, 2^11, 2^15, 2^16, their neighbours and the last id, values a step apart and tied"
    scope += "" if nightly() else " (ids beyond 2^12 in bfloat16 alone)"
    inside = check.take_refusal()
    run(check, payload.ids_past_float32(check.tp_size))
    refused = check.take_refusal()
    scope += "; 2^24 and 2^24 + 1" if refused is None else f"; beyond 2^24 it refuses: {refused}"
    check.proved("O2", "ids", scope, refused=inside)
