"""Token parity: on every row, the path's token is the full gather's, and NumPy's, bit for bit and on every rank."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.strategies import recipes
from properties.strategies.effort import few
from refimpl.session import Checker

pytestmark = pytest.mark.obligations("O1", "O2", "O3", "O4", "O7")


@given(data=st.data())
def test_rows_of_every_form(check: Checker, data: st.DataObject) -> None:
    check(data.draw(recipes.rows(check.tp_size)).expand())


@given(data=st.data())
def test_winners_at_block_edges(check: Checker, data: st.DataObject) -> None:
    """Ties and near-ties at the first and last columns of shards, vector blocks and id formats."""
    check(data.draw(recipes.rows(check.tp_size, ("edges",), forms=("contest",))).expand())


@given(data=st.data())
def test_real_vocabularies(check: Checker, data: st.DataObject) -> None:
    """Ids past 2048, 32768 and 65536, where narrower id formats round or wrap."""
    check(data.draw(recipes.rows(check.tp_size, ("real",), forms=("contest", "normal"))).expand())


@given(data=st.data())
def test_one_row_and_two(check: Checker, data: st.DataObject) -> None:
    """The batch sizes of decoding: squeezed dimensions and row counts of their own path show here."""
    batch = data.draw(st.sampled_from((1, 2)))
    check(data.draw(recipes.rows(check.tp_size, ("edges", "small"), batch=batch)).expand())


@few(8)
@given(data=st.data())
def test_ids_beyond_float32(check: Checker, data: st.DataObject) -> None:
    """A vocabulary past 2**24, where float32 has no number for every id; a path may refuse it."""
    check(data.draw(recipes.beyond_float32(check.tp_size)).expand())
