"""Empty batches: idle ranks call a head with no rows; the result is empty, and the next call is as good as ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.strategies import recipes, tables
from refimpl.case import Case
from refimpl.session import Checker

pytestmark = pytest.mark.obligations("O6", "O7")


@given(data=st.data())
def test_no_rows(check: Checker, data: st.DataObject) -> None:
    table_kinds = data.draw(st.sampled_from((None, tables.RISING)))
    recipe = data.draw(recipes.rows(check.tp_size, ("small", "edges"), table_kinds=table_kinds))
    rows = recipe.call()
    check(Case((rows, rows.rows(slice(0)), rows)))
