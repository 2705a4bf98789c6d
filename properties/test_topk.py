"""Top-k: values and ids are the full gather's and NumPy's, in order and on every rank (`refimpl.topk.contract`).

Ids are judged bit for bit, values up to the sign of a zero and the payload of a NaN.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.strategies import tables, topk
from properties.strategies.effort import few
from refimpl.case import Case
from refimpl.session import Unknown
from refimpl.topk.checker import TopKChecker
from refimpl.verdict.kinds import Kind
from refimpl.verdict.traffic import Uncountable, growth_over_shapes


@given(data=st.data())
def test_rows_of_every_form(check_topk: TopKChecker, data: st.DataObject) -> None:
    """Ties and near-ties at every depth, within a shard and across."""
    check_topk(data.draw(topk.topk_rows(check_topk.tp_size)).expand())


@given(data=st.data())
def test_k_beyond_the_shard(check_topk: TopKChecker, data: st.DataObject) -> None:
    """No shard can fill k by itself, empty ones not at all; up to every column there is."""
    ks = ("beyond", "all", "most")
    check_topk(data.draw(topk.topk_rows(check_topk.tp_size, ks, sizes=("small",), min_vocab=2)).expand())


@given(data=st.data())
def test_nans_come_first(check_topk: TopKChecker, data: st.DataObject) -> None:
    """NaNs of any sign and payload stand before all numbers, among themselves by the lowest id."""
    forms = ("nans", "landmarks", "bits", "contest")
    check_topk(data.draw(topk.topk_rows(check_topk.tp_size, forms=forms)).expand())


@given(data=st.data())
def test_zeros_and_subnormals(check_topk: TopKChecker, data: st.DataObject) -> None:
    """Both zeros are equal, and no subnormal is."""
    forms = ("zeros", "subnormals", "extremes")
    check_topk(data.draw(topk.topk_rows(check_topk.tp_size, forms=forms)).expand())


@given(data=st.data())
def test_padding_never_enters(check_topk: TopKChecker, data: st.DataObject) -> None:
    """Beside -inf rows too, where a k beyond the shard reaches down to whatever stands behind."""
    ks = ("beyond", "all", 3, "widest")
    forms = ("lowest", "sparse", "negative", "contest")
    check_topk(data.draw(topk.topk_rows(check_topk.tp_size, ks, sizes=("small",), forms=forms)).expand())


@given(data=st.data())
def test_tables(check_topk: TopKChecker, data: st.DataObject) -> None:
    """Target ids decide ties, in rising tables and in others."""
    kinds = (*tables.RISING, *tables.NOT_RISING)
    check_topk(data.draw(topk.topk_rows(check_topk.tp_size, table_kinds=kinds, min_vocab=2)).expand())


@given(data=st.data())
def test_calls_in_turn(check_topk: TopKChecker, data: st.DataObject) -> None:
    check_topk(data.draw(topk.in_turn(check_topk.tp_size)).expand())


@given(data=st.data())
def test_k_beyond_the_vocabulary_is_refused(check_topk: TopKChecker, data: st.DataObject) -> None:
    """There is no such entry, and none may be invented."""
    judgement = check_topk(data.draw(topk.topk_rows(check_topk.tp_size, ("over",), sizes=("small",))).expand())
    assert judgement.refused is not None


@pytest.mark.needs_tp(2)
@few(2)
@given(data=st.data())
def test_traffic(check_topk: TopKChecker, data: st.DataObject) -> None:
    """A vocabulary 64 times as large costs nothing more: O(batch x tp_size x k) bytes."""
    case = data.draw(topk.wider(check_topk.tp_size)).expand()
    if check_topk(case).refused is not None:
        return
    run = check_topk.run(case, count=True)
    try:
        wrong = growth_over_shapes(Case(case.plain.calls), run)
    except Uncountable as reason:
        raise Unknown(str(reason)) from reason
    if wrong:
        check_topk.fail(Kind.COMMUNICATION, wrong, case, run)
