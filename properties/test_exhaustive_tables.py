"""Tables, exhaustively: every injective table of a few draft ids with every order of its columns; far target ids."""

from __future__ import annotations

import pytest

from properties.exhaustive import tables
from properties.rules import tie_rule
from properties.strategies.effort import nightly
from refimpl.session import Checker

pytestmark = pytest.mark.obligations("O5")


def test_every_injective_table(check: Checker) -> None:
    rule = tie_rule(check)
    if rule is None:
        return
    for batch in tables.of_tables(check.tp_size, rule, nightly()):
        check.known(batch.case, batch.tokens, label=batch.label, tie_rule=rule)
    for batch in tables.of_far_targets(check.tp_size):
        check.known(batch.case, batch.tokens, label=batch.label)
    draft, target = tables.sizes(check.tp_size, nightly())
    words = "" if rule == "target_id" else ", which is the full gather's rule exactly where the table rises"
    check.proved(
        "O5",
        "tables",
        f"every injective table of up to {draft} draft ids in {target} target ids, every weak ordering of the columns, "
        f"every split, ties by {rule.replace('_', ' ')}{words}; and target ids up to 65,537 and around 2^24",
    )
