"""The tie rule: of equal greatest values the lowest id wins, inside a shard and over any number of shards."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.strategies import recipes
from refimpl.session import Checker

pytestmark = pytest.mark.obligations("O1", "O3")


@given(data=st.data())
def test_within_a_shard(check: Checker, data: st.DataObject) -> None:
    check(data.draw(recipes.tie_rows(check.tp_size, "within")).expand())


@pytest.mark.needs_tp(2)
@given(data=st.data())
def test_across_two_shards(check: Checker, data: st.DataObject) -> None:
    check(data.draw(recipes.tie_rows(check.tp_size, "two")).expand())


@pytest.mark.needs_tp(3)
@given(data=st.data())
def test_across_three_shards(check: Checker, data: st.DataObject) -> None:
    check(data.draw(recipes.tie_rows(check.tp_size, "three")).expand())


@given(data=st.data())
def test_across_all_shards(check: Checker, data: st.DataObject) -> None:
    check(data.draw(recipes.tie_rows(check.tp_size, "all")).expand())


@given(data=st.data())
def test_rows_of_one_value(check: Checker, data: st.DataObject) -> None:
    """Every column ties: id 0, whatever the value."""
    check(data.draw(recipes.rows(check.tp_size, forms=("constant", "near"))).expand())
