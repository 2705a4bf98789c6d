"""Shard invariance: for given logits, where the vocabulary is cut and over how many ranks changes no token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.strategies import recipes
from refimpl.session import Checker

pytestmark = pytest.mark.obligations("O1", "O3", "O4")


@pytest.mark.needs_tp(2)
@given(data=st.data())
def test_over_every_smaller_tp_size(check: Checker, data: st.DataObject) -> None:
    recipe = data.draw(recipes.resharded(check.tp_size))
    for tp_size in range(check.tp_size, 0, -1):
        check(recipe.over(tp_size))


@pytest.mark.needs_tp(2)
@given(data=st.data())
def test_over_other_splits(check: Checker, data: st.DataObject) -> None:
    """The shapes stay and the bounds change: what a path keeps by shape is wrong for the next split."""
    check(data.draw(recipes.resharded(check.tp_size)).expand())
