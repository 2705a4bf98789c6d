"""Heads: layout and table at their real size, on given logits. Reducing a hidden size changes neither."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.strategies import padding as paddings
from properties.strategies import values
from properties.strategies.effort import few
from properties.strategies.hidden_states import CUTS
from refimpl import bits
from refimpl.case import Call, Case
from refimpl.head_check import HeadChecker
from refimpl.vocab.layouts import uneven_layout

pytestmark = [pytest.mark.head, pytest.mark.obligations("O4", "O5")]

_CELLS = 1 << 21
_WINNERS = ("normal", "steps", "zeros")


@pytest.mark.needs_path
@few(8)
@given(data=st.data())
def test_columns_and_padding(check_head: HeadChecker, data: st.DataObject) -> None:
    """Winners and ties at the edges of every shard, beside padding that would win."""
    facts = check_head.facts
    cut = data.draw(st.sampled_from(CUTS))
    layout = check_head.layout if cut == "engine" else uneven_layout(facts.num_logits, check_head.tp_size)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    rows = max(1, min(48, _CELLS // facts.num_logits))
    logits = values.contests(rng, layout, facts.logits_dtype, rows, _WINNERS)
    padding = paddings.patterns(data.draw(paddings.kinds), facts.logits_dtype, logits)
    check_head.given(Case((Call(layout, facts.logits_dtype, logits, padding, facts.d2t),)))


@pytest.mark.needs_path
def test_first_and_last_ids(check_head: HeadChecker) -> None:
    """Each shard's first and last column wins alone; then the table's own tie, where it is no strict rise."""
    facts, layout = check_head.facts, check_head.layout
    edges = sorted({edge for start, end in layout.bounds if end > start for edge in (start, end - 1)})
    winners = [[edge] for edge in edges]
    if check_head.table_report is not None and check_head.table_report.lowest_inverted_pair is not None:
        winners.append(list(check_head.table_report.lowest_inverted_pair))
    step = max(1, min(len(winners), _CELLS // facts.num_logits))
    one, less = bits.encode(np.array([1.0, -2.0]), facts.logits_dtype)
    for begin in range(0, len(winners), step):
        chosen = winners[begin : begin + step]
        logits = np.full((len(chosen), facts.num_logits), less, bits.STORAGE[facts.logits_dtype])
        for row, columns in enumerate(chosen):
            logits[row, columns] = one
        padding = (bits.INFINITY[facts.logits_dtype], bits.NAN[facts.logits_dtype])
        check_head.given(Case((Call(layout, facts.logits_dtype, logits, padding, facts.d2t),)))
