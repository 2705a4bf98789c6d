"""D2T tables: with one, the token is the target id, and the order of target ids decides ties.

Mapping the lowest draft id of the tied set is right exactly for rising tables. Which of the two a path does is its
claim (``tie_break``) or is observed; a path that maps draft ids is right by its own rule, and the witness is noted.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.strategies import recipes, tables
from properties.strategies.effort import few
from refimpl import bits
from refimpl.case import Call, Case
from refimpl.session import Checker
from refimpl.vocab.d2t import check_table, offsets
from refimpl.vocab.layouts import even_layout

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


def tie_rule(check: Checker) -> str | None:
    """By which id space the path decides ties: claimed, else observed on the smallest tie of an inverted pair.

    None where the path refuses tables. A claim that does not hold, or an answer that follows neither rule, fails.
    """
    ids = np.array([0, 2, 1])
    logits = bits.encode(np.array([[0.0, 1.0, 1.0]]), "float32")
    case = Case((Call(even_layout(3, check.tp_size), "float32", logits, d2t=offsets(ids)),))
    claim = check.tie_break
    if claim == "target_id":
        return "target_id" if check(case).refused is None else None
    ranks = check.run(case).ranks
    answers = [rank.calls[0].tokens for rank in ranks if rank.calls]
    follows_draft_ids = len(answers) == len(ranks) and all(t is not None and t.tolist() == [2] for t in answers)
    rule = "draft_id" if claim == "draft_id" or follows_draft_ids else "target_id"
    if check(case, tie_rule=rule).refused is not None:
        return None
    if rule == "draft_id":
        check.note(
            "ties under a table go to the lowest draft id, right for rising tables only; "
            "witness: targets (0, 2, 1), row (0, 1, 1) gives token 2, the full gather 1"
        )
    return rule
