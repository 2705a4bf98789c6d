"""Heads with a table: the whole of it is checked; what its order decides is shown on the ranks, and how often measured.

Under a table that does not rise strictly, a path that breaks ties by draft id differs from the full gather on the rows
whose tied set has its lowest target id elsewhere than at its lowest draft id, and on no other: a condition, not a bug.
"""

from __future__ import annotations

import numpy as np
import pytest

from refimpl import bits
from refimpl.head_case import HeadCase
from refimpl.head_check import HeadChecker
from refimpl.verdict.obligations import Status
from refimpl.vocab.d2t import targets
from refimpl.vocab.mistakes import SORT_COMMAND, diagnose
from refimpl.vocab.tie_rate import TieRate

pytestmark = [
    pytest.mark.head,
    pytest.mark.obligations("O5"),
    pytest.mark.needs_path,
    pytest.mark.needs_table,
    pytest.mark.about_tables,
]

# What the estimate may cost: multiplications and additions, logits in all, logits at a time, rows.
_OPERATIONS, _LOGITS, _BLOCK, _ROWS = 1 << 37, 1 << 26, 1 << 23, 2048


def test_whole_table(check_head: HeadChecker) -> None:
    """In range and injective; where it does not rise, the smallest tie that shows it, on the ranks."""
    check_head.table()
    report, facts = check_head.table_report, check_head.facts
    assert report is not None and facts.d2t is not None
    size = f"the whole table of {facts.num_logits} draft ids is in range and injective"
    for doubt in _doubts(check_head):
        check_head.evidence("O5", Status.REFUTED, condition=f"if the table is meant: {doubt}", kind="doubtful table")
    if report.lowest_inverted_pair is None:
        check_head.evidence("O5", Status.TESTED, scope=f"{size} and rises strictly")
        return
    run = check_head.breaks_ties_by_draft_id
    if check_head.refusal is not None:
        check_head.evidence("O5", Status.NOT_RUN, scope=f"refused: {check_head.refusal}")
        return
    if run is None:
        check_head.evidence("O5", Status.TESTED, scope=f"{size}; its {report.inversions} inversions do not matter")
        return
    i, j = report.lowest_inverted_pair
    ids = targets(facts.d2t)
    text = (
        "rows whose tied set has its lowest target id elsewhere than at its lowest draft id; the smallest: draft ids "
        f"{i} and {j} tie, targets {ids[i]} and {ids[j]}, full gather {ids[j]}, this path {ids[i]}; "
        f"{report.inversions} inverted pairs; {_estimate(check_head)}; sort the table ({SORT_COMMAND}) or use a "
        "path that breaks ties by target id (target_tie_break)"
    )
    check_head.condition(text, check_head.smallest_tie(), run)


def _doubts(check: HeadChecker) -> list[str]:
    """Likely mistakes that leave a sound table: of a checkpoint the ranks told them, they know its t2d."""
    facts = check.facts
    if "table_doubts" in facts.figures or facts.d2t is None:
        return [str(doubt) for doubt in facts.figures.get("table_doubts", [])]
    found = diagnose(facts.d2t, facts.num_logits, int(facts.figures["vocab_size"])).mistakes
    return [f"{mistake.name}: {mistake.message}; {mistake.remedy}" for mistake in found]


def _estimate(check: HeadChecker) -> str:
    facts = check.facts
    if not facts.starts_from_hidden_states:
        return "how often is not known, the head has no weights"
    most = min(_OPERATIONS // (2 * facts.num_logits * facts.hidden_size), _LOGITS // facts.num_logits, _ROWS)
    block = max(1, min(most, _BLOCK // facts.num_logits))
    rng = np.random.default_rng(20)
    rate = TieRate(0, 0)
    while rate.rows < max(most, 16):
        states = bits.encode(rng.standard_normal((block, facts.input_size)), facts.dtype)
        rate += check.tie_rate(HeadCase(facts.ref, check.layout, facts.dtype, states))
    return str(rate)
