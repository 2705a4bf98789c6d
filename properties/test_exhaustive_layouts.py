"""Layouts, exhaustively: every column of every shard gives its own id, and padding, poisoned, gives none."""

from __future__ import annotations

import pytest

from properties.exhaustive import columns
from properties.exhaustive.batches import run
from properties.strategies.effort import nightly
from refimpl.session import Checker

pytestmark = pytest.mark.obligations("O4")


def test_every_column_beside_poisoned_padding(check: Checker) -> None:
    run(check, columns.of_layouts(check.tp_size))
    run(check, columns.of_real_layouts(check.tp_size, nightly()))
    all_of_one = f" (of {columns.REAL[0]:,} ids every column)" if nightly() else ""
    real = ", ".join(f"{size:,}" for size in columns.REAL)
    check.proved(
        "O4",
        "columns",
        f"every column of {len(columns.SMALL)} vocabularies of up to {columns.SMALL[-1]} ids in five cuts, and the "
        f"first and last 8 columns of every shard of {real} ids as engines cut them{all_of_one}, padding cells holding "
        "every special value",
    )
