"""Special values: both zeros tie, a NaN of any sign and payload beats every number, and what is close stays apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.strategies import recipes
from refimpl.session import Checker

pytestmark = pytest.mark.obligations("O1", "O2", "O3")


@given(data=st.data())
def test_signed_zeros_tie(check: Checker, data: st.DataObject) -> None:
    rows = recipes.rows(check.tp_size, ("small", "edges"), forms=("zeros", "contest"), winners=("zeros",))
    check(data.draw(rows).expand())


@given(data=st.data())
def test_nan_wins(check: Checker, data: st.DataObject) -> None:
    """The first NaN of a row, from any rank, beside +inf too."""
    rows = recipes.rows(check.tp_size, ("small", "edges"), forms=("contest", "nans", "bits"), winners=("nans",))
    check(data.draw(rows).expand())


@given(data=st.data())
def test_infinities_and_largest_values(check: Checker, data: st.DataObject) -> None:
    rows = recipes.rows(
        check.tp_size, ("small", "edges"), forms=("extremes", "contest", "sparse"), winners=("extremes",)
    )
    check(data.draw(rows).expand())


@given(data=st.data())
def test_all_neg_inf_rows(check: Checker, data: st.DataObject) -> None:
    """Without a table such a row is a tie like any other: id 0."""
    check(data.draw(recipes.rows(check.tp_size, ("small", "edges"), forms=("lowest", "sparse"))).expand())


@given(data=st.data())
def test_subnormals(check: Checker, data: st.DataObject) -> None:
    """Subnormals differ from zero and from each other: nothing may be flushed."""
    rows = recipes.rows(
        check.tp_size, ("small", "edges"), forms=("subnormals", "contest"), winners=("subnormals", "zeros")
    )
    check(data.draw(rows).expand())


@given(data=st.data())
def test_neighbours_one_ulp_apart(check: Checker, data: st.DataObject) -> None:
    """Values that a narrower format rounds together are not equal."""
    rows = recipes.rows(
        check.tp_size, ("small", "edges"), forms=("near", "contest", "ones", "steps"), winners=("ones", "steps")
    )
    check(data.draw(rows).expand())
