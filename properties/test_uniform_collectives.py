"""Uniform collectives: what one rank alone sees (its padding, its empty shard, its NaNs) decides no collective."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.strategies import recipes
from refimpl.session import Checker
from refimpl.verdict.kinds import Kind

pytestmark = pytest.mark.obligations("O7")


@pytest.mark.needs_tp(2)
@given(data=st.data())
def test_ranks_that_see_different_things(check: Checker, data: st.DataObject) -> None:
    """Ranks with padding and without, shards with columns and without, winners here and never there, rows and none."""
    case = data.draw(recipes.lopsided(check.tp_size)).expand()
    if check(case).refused is not None:
        return
    run = check.run(case, count=True)
    for calls in zip(*(rank.calls for rank in run.ranks), strict=True):
        asked = [call.collectives for call in calls]
        for rank, collectives in enumerate(asked):
            if collectives != asked[0]:
                message = f"rank 0 asked for {_words(asked[0])}, rank {rank} for {_words(collectives)}"
                check.fail(Kind.COLLECTIVE_MISMATCH, message, case, run)


def _words(collectives: tuple[tuple[str, int], ...] | None) -> str:
    return ", ".join(f"{name} of {size} bytes" for name, size in collectives or ()) or "nothing"
