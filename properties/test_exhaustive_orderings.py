"""Orderings, exhaustively: every order with ties of a few columns, over every split, and of the ranks' candidates."""

from __future__ import annotations

import pytest

from properties.exhaustive import orderings
from properties.exhaustive.batches import run
from properties.strategies.effort import nightly
from refimpl.session import Checker

pytestmark = pytest.mark.obligations("O1", "O3")


@pytest.mark.obligations("O7")
def test_every_weak_ordering(check: Checker) -> None:
    """All that an argmax can tell apart in so few columns, as plain values, with NaN on top, with -inf below."""
    every, most = orderings.columns_over(check.tp_size, nightly())
    for tp_size in {1, check.tp_size} if check.tp_size <= 2 else {check.tp_size}:
        for n in range(1, most + 1):
            run(check, orderings.over_splits(n, tp_size, orderings.realisations(n, tp_size, nightly())))
    check.proved(
        "O1",
        "orderings",
        f"every weak ordering of up to {most} columns over every contiguous split, empty shards included, as plain "
        f"values, with NaN on top and with -inf below{', in each dtype' if every == most else ''}"
        f"{f'; up to {every} columns in each dtype' if every < most else ''}",
    )


@pytest.mark.needs_tp(2)
def test_every_ordering_of_candidates(check: Checker) -> None:
    """One candidate a rank, from every set of ranks that hold any."""
    if check.tp_size > 8:
        pytest.skip("orderings of more than 8 candidates are not enumerated: there are 7,087,261 of 9")
    run(check, orderings.candidates(check.tp_size))
    check.proved(
        "O3",
        "candidates",
        f"every weak ordering of the candidates of every set of up to {check.tp_size} ranks, the other shards empty",
    )
