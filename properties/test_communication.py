"""Communication: a local reduction sends O(batch x tp_size) bytes, in a number of collectives that nothing changes.

What is counted is what torch.distributed is asked for. Collectives of custom kernels or other threads cannot be seen:
where there is none at all, or the group itself counted more of them, the property is unknown.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.strategies import recipes
from properties.strategies.layouts import split
from refimpl.case import Case
from refimpl.ranks.outcome import Run
from refimpl.session import Checker, Unknown
from refimpl.verdict.kinds import Kind
from refimpl.verdict.traffic import Uncountable, growth_over_ranks, growth_over_shapes, plainest


@pytest.mark.needs_tp(2)
@given(data=st.data())
def test_growth_with_vocabulary_and_batch(check: Checker, data: st.DataObject) -> None:
    """A vocabulary 64 times as large costs nothing more, a batch 16 times as large no more than 16 times as much."""
    rows = data.draw(recipes.rows(check.tp_size, ("small",), min_vocab=4, forms=("normal", "contest")))
    style, batch = data.draw(st.sampled_from(("uneven", "even", "engine"))), data.draw(st.integers(2, 7))
    wide = replace(rows, layout=split(64 * rows.layout.vocab_size, check.tp_size, style, rows.seed))
    shapes = ((rows, 1), (wide, 1), (rows, batch), (wide, batch), (rows, 16 * batch))
    case = Case(tuple(replace(recipe, batch=size).call() for recipe, size in shapes))
    if check(case).refused is not None:
        return
    run = check.run(case, count=True)
    try:
        if growth_over_shapes(case, run):
            case, run, wrong = plainest(case, run, functools.partial(counted, check))
            check.fail(Kind.COMMUNICATION, wrong, case, run)
    except Uncountable as reason:
        check.unknown(str(reason))


def counted(check: Checker, case: Case) -> Run | None:
    try:
        return check.run(case, count=True)
    except Unknown:
        return None


@pytest.mark.needs_tp(3)
@given(data=st.data())
def test_growth_with_tp_size(check: Checker, data: st.DataObject) -> None:
    """Twice the ranks send no more than twice as much."""
    recipe = data.draw(recipes.resharded(check.tp_size))
    few, many = recipe.over(2), recipe.over(check.tp_size)
    if any(check(case).refused is not None for case in (few, many)) or not many.num_rows:
        return
    run = check.run(many, count=True)
    try:
        wrong = growth_over_ranks((few, check.run(few, count=True)), (many, run))
    except Uncountable as reason:
        check.unknown(str(reason))
    if wrong:
        check.fail(Kind.COMMUNICATION, wrong, many, run)
