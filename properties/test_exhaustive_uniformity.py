"""Uniformity, exhaustively: what a rank alone sees, in every combination over the ranks, decides no collective."""

from __future__ import annotations

import pytest

from properties.exhaustive import uniformity
from properties.rules import demand_same_collectives
from refimpl.session import Checker

pytestmark = pytest.mark.obligations("O7")


def test_every_combination_of_situations(check: Checker) -> None:
    """A shard of ordinary values, with padding, without columns, with a sure winner, a NaN, or nothing that wins."""
    for batch in uniformity.of_situations(check.tp_size, "bfloat16"):
        if check.known(batch.case, batch.tokens, label=batch.label).refused is not None:
            return
        if not batch.case.bystanders:
            demand_same_collectives(check, batch.case)
    where = (
        "on every rank" if check.tp_size <= uniformity.EVERY_RANK_UP_TO else "on every two ranks, the others ordinary"
    )
    check.proved(
        "O7",
        "ranks",
        f"6 situations of a shard {where}, in batches of 1 and 2 rows, and with the group a part of the world: "
        "the same tokens, and the same collectives of the same sizes in the same order",
    )
