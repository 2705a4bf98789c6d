"""Engine layouts: shards of one width, as engines cut them, to which many a fast path is confined.

Elsewhere most shards are uneven, and a path that declines those is asked little. Here tp_size divides the vocabulary,
or the padding that makes it so lies at the vocabulary's end.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.strategies import recipes, tables
from refimpl.session import Checker
from refimpl.vocab.layouts import Layout, even_layout, padded_layout

pytestmark = pytest.mark.obligations("O1", "O2", "O3", "O7")


def divided(layout: Layout) -> Layout:
    """Another vocabulary of about that size, which tp_size divides: no padding."""
    width = -(-layout.vocab_size // layout.tp_size)
    return even_layout(width * layout.tp_size, layout.tp_size)


@given(data=st.data())
def test_vocabulary_that_divides(check: Checker, data: st.DataObject) -> None:
    rows = data.draw(recipes.rows(check.tp_size))
    check(replace(rows, layout=divided(rows.layout)).expand())


@given(data=st.data())
def test_vocabulary_that_divides_under_a_table(check: Checker, data: st.DataObject) -> None:
    rows = data.draw(recipes.rows(check.tp_size, ("small", "edges"), table_kinds=tables.RISING))
    check(replace(rows, layout=divided(rows.layout)).expand())


@given(data=st.data())
def test_padding_at_the_end(check: Checker, data: st.DataObject) -> None:
    rows = data.draw(recipes.rows(check.tp_size))
    multiple = data.draw(st.sampled_from((8, 1, 64)))
    layout = padded_layout(rows.layout.vocab_size, check.tp_size, multiple, pad_to_tp_size=True)
    check(replace(rows, layout=layout).expand())
