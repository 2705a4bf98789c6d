"""Changes that must change nothing: a row's token depends on the order of that row's values and on nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.strategies import recipes
from refimpl.session import Checker

pytestmark = pytest.mark.obligations("O6")


@given(data=st.data())
def test_order_preserving_values(check: Checker, data: st.DataObject) -> None:
    """Other values of the same order, one ulp apart or far, in any dtype, give the same tokens."""
    check(data.draw(recipes.relabelled(check.tp_size)).expand())


@given(data=st.data())
def test_rows_permuted(check: Checker, data: st.DataObject) -> None:
    check(data.draw(recipes.rearranged(check.tp_size, ("permuted",))).expand())


@given(data=st.data())
def test_rows_split_and_joined(check: Checker, data: st.DataObject) -> None:
    """A row is answered alike alone, in half a batch, and in a batch that holds it twice."""
    check(data.draw(recipes.rearranged(check.tp_size, ("split", "joined", "one by one"))).expand())


@given(data=st.data())
def test_calls_of_other_rows_between(check: Checker, data: st.DataObject) -> None:
    check(data.draw(recipes.rearranged(check.tp_size, ("interleaved",))).expand())


@given(data=st.data())
def test_calls_in_sequence(check: Checker, data: st.DataObject) -> None:
    """Batches, layouts, dtypes and tables change: no call remembers an earlier one, and no result changes later."""
    check(data.draw(recipes.calls(check.tp_size)).expand())
