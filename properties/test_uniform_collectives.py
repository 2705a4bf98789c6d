"""Uniform collectives: what one rank alone sees (its padding, its empty shard, its NaNs) decides no collective."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.rules import demand_same_collectives
from properties.strategies import recipes
from refimpl.session import Checker

pytestmark = pytest.mark.obligations("O7")


@pytest.mark.needs_tp(2)
@given(data=st.data())
def test_ranks_that_see_different_things(check: Checker, data: st.DataObject) -> None:
    """Ranks with padding and without, shards with columns and without, winners here and never there, rows and none."""
    case = data.draw(recipes.lopsided(check.tp_size)).expand()
    if check(case).refused is not None:
        return
    demand_same_collectives(check, case)
