"""Padding: its columns may hold anything and never take part."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.strategies import recipes
from refimpl.session import Checker

pytestmark = pytest.mark.obligations("O4")


@given(data=st.data())
def test_padding_never_wins(check: Checker, data: st.DataObject) -> None:
    """The same rows beside values above, equal to and near their own, on shards of nothing but padding too."""
    check(data.draw(recipes.padded(check.tp_size)).expand())


@given(data=st.data())
def test_padding_beside_low_rows(check: Checker, data: st.DataObject) -> None:
    """Rows of negative, lowest finite and -inf values: what a path masks padding with must be lower still."""
    rows = recipes.padded_rows(check.tp_size, ("small", "edges"), forms=("negative", "lowest", "sparse"))
    check(data.draw(rows).expand())
