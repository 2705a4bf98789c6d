"""What several properties ask of a path: by which id space it decides ties, and that its ranks ask for the same."""

from __future__ import annotations

import numpy as np

from refimpl import bits
from refimpl.case import Call, Case
from refimpl.session import Checker
from refimpl.verdict.kinds import Kind
from refimpl.vocab.d2t import offsets
from refimpl.vocab.layouts import even_layout


def takes_tables(check: Checker) -> bool:
    """Whether the path answers where there is a table, rightly or not."""
    logits = bits.encode(np.array([[0.0, 1.0]]), "float32")
    case = Case((Call(even_layout(2, check.tp_size), "float32", logits, d2t=offsets(np.array([1, 3]))),))
    return any(call.status != "refused" for rank in check.run(case).ranks for call in rank.calls)


def tie_rule(check: Checker) -> str | None:
    """By which id space the path decides ties: claimed, else observed on the smallest tie of an inverted pair.

    None where the path refuses tables. A claim that does not hold, or an answer that follows neither rule, fails.
    """
    ids = np.array([0, 2, 1])
    logits = bits.encode(np.array([[0.0, 1.0, 1.0]]), "float32")
    case = Case((Call(even_layout(3, check.tp_size), "float32", logits, d2t=offsets(ids)),))
    claim = check.tie_break
    if claim == "target_id":
        return "target_id" if check(case).refused is None else None
    ranks = check.run(case).ranks
    answers = [rank.calls[0].tokens for rank in ranks if rank.calls]
    follows_draft_ids = len(answers) == len(ranks) and all(t is not None and t.tolist() == [2] for t in answers)
    rule = "draft_id" if claim == "draft_id" or follows_draft_ids else "target_id"
    if check(case, tie_rule=rule).refused is not None:
        return None
    if rule == "draft_id":
        check.note(
            "ties under a table go to the lowest draft id, right for rising tables only; "
            "witness: targets (0, 2, 1), row (0, 1, 1) gives token 2, the full gather 1"
        )
    return rule


def demand_same_collectives(check: Checker, case: Case) -> None:
    """Run a case that holds once more, counted: on every rank the same collectives of the same sizes."""
    run = check.run(case, count=True)
    for calls in zip(*(rank.calls for rank in run.ranks), strict=True):
        asked = [call.collectives for call in calls]
        for rank, collectives in enumerate(asked):
            if collectives != asked[0]:
                message = f"rank 0 asked for {_words(asked[0])}, rank {rank} for {_words(collectives)}"
                check.fail(Kind.COLLECTIVE_MISMATCH, message, case, run)


def _words(collectives: tuple[tuple[str, int], ...] | None) -> str:
    return ", ".join(f"{name} of {size} bytes" for name, size in collectives or ()) or "nothing"
