"""Where the shipped paths decline: at the first id that their payload cannot hold, and at none before it.

Properties cannot show this. A refusal is a path's right, so one that declines too early fails nothing. A batch of no
rows has no logits, whatever its vocabulary: this costs no memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from refimpl.case import Call, Case
from refimpl.ranks.runtime import Ranks
from refimpl.verdict.judge import judge
from refimpl.vocab.layouts import even_layout, layout_from_sizes

LIMITS = {"gather_pairs": 2**24, "reduce_max_key": 2**31 - 1, "target_tie_break": 2**31 - 1}


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(backend="gloo") as running:
        yield running


def refused(ranks: Ranks, path: str, call: Call) -> bool:
    judgement = judge(Case((call,)), ranks.run(Case((call,)), path))
    assert judgement.holds
    return judgement.refused is not None


@pytest.mark.parametrize("path", LIMITS)
def test_the_last_id_that_fits_is_taken_and_the_next_is_refused(ranks: Ranks, path: str) -> None:
    def empty(vocab_size: int) -> Call:
        return Call(even_layout(vocab_size, 2), "bfloat16", np.empty((0, vocab_size), np.uint16))

    assert not refused(ranks, path, empty(LIMITS[path] + 1))
    assert refused(ranks, path, empty(LIMITS[path] + 2))


@pytest.mark.parametrize(("last", "declined"), [(LIMITS["target_tie_break"], False), (2**31, True)])
def test_targets_count_not_draft_ids_where_they_break_ties(ranks: Ranks, last: int, declined: bool) -> None:
    table = np.zeros(4, np.int64)
    table[3] = last - 3
    call = Call(layout_from_sizes([2, 2]), "float32", np.zeros((0, 4), np.uint32), d2t=table)
    assert refused(ranks, "target_tie_break", call) is declined


def test_a_negative_target_is_refused(ranks: Ranks) -> None:
    call = Call(layout_from_sizes([2, 2]), "float32", np.zeros((0, 4), np.uint32), d2t=np.array([-1, 0, 0, 0]))
    assert refused(ranks, "target_tie_break", call)
