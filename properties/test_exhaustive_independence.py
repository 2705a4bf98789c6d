"""Independence, exhaustively: every order and cut of up to four rows, every sequence of a few different calls."""

from __future__ import annotations

import pytest

from properties.exhaustive import independence
from properties.exhaustive.batches import run
from properties.rules import takes_tables
from properties.strategies.effort import nightly
from refimpl.session import Checker

pytestmark = pytest.mark.obligations("O6")


def test_every_order_and_cut_of_rows(check: Checker) -> None:
    run(check, independence.of_batches(check.tp_size))
    check.proved(
        "O6",
        "batches",
        "every choice and order of up to 4 rows of different needs, in every cut to batches",
    )


def test_every_sequence_of_calls(check: Checker) -> None:
    tables = takes_tables(check)
    length = 4 if nightly() else 3
    run(check, independence.of_sequences(check.tp_size, length, tables))
    kinds = len(independence.alphabet(check.tp_size, tables))
    check.proved(
        "O6",
        "sequences",
        f"every sequence of {length} calls of {kinds} kinds: other rows, more, none, other bounds, another dtype"
        f"{', two tables' if tables else ''}",
    )
