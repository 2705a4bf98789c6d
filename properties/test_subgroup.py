"""Subgroups: the group may be a part of the world, and a rank in it another number than in the world."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.strategies import recipes
from refimpl.session import Checker

pytestmark = pytest.mark.obligations("O3", "O4", "O7")


@given(data=st.data())
def test_beside_other_ranks(check: Checker, data: st.DataObject) -> None:
    """The ranks before the group take no part and must not be waited for."""
    rows = data.draw(recipes.rows(check.tp_size, ("small", "edges"), min_filled=min(2, check.tp_size)))
    check(replace(rows, bystanders=data.draw(st.sampled_from((1, 2)))).expand())
