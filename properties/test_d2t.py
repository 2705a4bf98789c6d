"""D2T tables: with one, the token is the target id, and the order of target ids decides ties.

Mapping the lowest draft id of the tied set is right exactly for rising tables. Which of the two a path does is its
claim (``tie_break``) or is observed; a path that maps draft ids is right by its own rule, and the witness is noted.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.rules import tie_rule
from properties.strategies import recipes, tables
from properties.strategies.effort import few
from refimpl.session import Checker
from refimpl.vocab.d2t import check_table

pytestmark = pytest.mark.obligations("O5")


@given(data=st.data())
def test_rising_tables(check: Checker, data: st.DataObject) -> None:
    sizes = ("small", "edges", "small", "small", "edges", "small", "small", "real")
    check(data.draw(recipes.rows(check.tp_size, sizes, table_kinds=tables.RISING)).expand())


@given(data=st.data())
def test_tables_in_turn(check: Checker, data: st.DataObject) -> None:
    """A table belongs to its call: another one of the same length, none, and the first again."""
    check(data.draw(recipes.tables_in_turn(check.tp_size)).expand())


@given(data=st.data())
def test_tables_that_do_not_rise(check: Checker, data: st.DataObject) -> None:
    rule = tie_rule(check)
    if rule is not None:
        rows = recipes.rows(check.tp_size, ("small", "edges"), table_kinds=tables.NOT_RISING, min_vocab=2)
        check(data.draw(rows).expand(), tie_rule=rule)


@given(data=st.data())
def test_all_neg_inf_rows_under_a_table(check: Checker, data: st.DataObject) -> None:
    """A condition of its own: filler id 0 or the target of draft 0, and nothing else."""
    rows = recipes.rows(check.tp_size, ("small", "edges"), forms=("lowest",), table_kinds=tables.RISING)
    check(data.draw(rows).expand())


@few(2)
@given(data=st.data())
def test_targets_beyond_int16(check: Checker, data: st.DataObject) -> None:
    check(data.draw(recipes.far_targets(check.tp_size, "beyond int16")).expand())


@few(8)
@given(data=st.data())
def test_targets_beyond_float32(check: Checker, data: st.DataObject) -> None:
    check(data.draw(recipes.far_targets(check.tp_size, "beyond float32")).expand())


@given(bad=tables.bad_tables())
def test_bad_tables_are_named(check: Checker, bad: tables.BadTable) -> None:
    """The reference itself is not defined under such a table: it is refuted by name, and no row is compared."""
    errors = check_table(*bad.expand()).errors
    assert any(tables.FAULTS[bad.fault] in error for error in errors), f"{bad} gives {errors}"
