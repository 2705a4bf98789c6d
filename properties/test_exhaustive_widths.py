"""Shards of real widths, exhaustively: every column wins once, and ties lie around every block edge."""

from __future__ import annotations

import pytest

from properties.exhaustive import columns
from properties.exhaustive.batches import run
from properties.strategies.effort import nightly
from refimpl.session import Checker

pytestmark = pytest.mark.obligations("O1")


def test_every_column_and_block_edge(check: Checker) -> None:
    run(check, columns.of_widths(check.tp_size, nightly()))
    full = columns.widths(check.tp_size, nightly())
    words = ", ".join(f"{width:,}" for width in full)
    rest = [width for width in columns.WIDTHS if width not in full]
    blocks = "every block edge" if nightly() else "the greatest blocks"
    dtypes = "in each dtype" if columns.ties_in_each_dtype(check.tp_size, nightly()) else "in one dtype each"
    more = f"; of {len(rest)} widths up to {rest[-1]:,} ties around {blocks}, {dtypes}" if rest else ""
    check.proved(
        "O1",
        "widths",
        f"every single winning column of a shard of {words} columns on the {'first and the ' if nightly() else ''}last "
        f"rank and tied pairs around every block edge, in each dtype{more}",
    )
