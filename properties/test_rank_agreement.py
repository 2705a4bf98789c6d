"""Rank agreement: all ranks return the same tokens, whoever holds the winner. Rank 0 alone shows no such bug."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.strategies import recipes
from refimpl.session import Checker

pytestmark = pytest.mark.obligations("O2", "O3", "O7")


@pytest.mark.needs_tp(2)
@given(data=st.data())
def test_every_rank_has_a_candidate(check: Checker, data: st.DataObject) -> None:
    """No shard is empty: on every row each rank puts its own best column against the others'."""
    rows = recipes.rows(check.tp_size, forms=("contest", "near", "normal", "landmarks"), min_filled=check.tp_size)
    check(data.draw(rows).expand())


@pytest.mark.needs_tp(2)
@given(data=st.data())
def test_candidates_within_one_rounding_step(check: Checker, data: st.DataObject) -> None:
    """The ranks' best values differ by a few ulps: one that is rounded on its way makes ranks disagree."""
    dtypes = ("float32", "float32", "float16", "bfloat16")
    rows = recipes.rows(check.tp_size, ("small", "edges"), forms=("near", "contest"), dtypes=dtypes, min_filled=2)
    check(data.draw(rows).expand())
