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
    more = (
        f"; of {len(rest)} widths up to {rest[-1]:,} ties around the greatest blocks, in one dtype each" if rest else ""
    )
    check.proved(
        "O1",
        "widths",
        f"every single winning column of a shard of {words} columns on the {'first and the ' if nightly() else ''}last "
        f"rank and tied pairs around every block edge, in each dtype{more}",
    )
