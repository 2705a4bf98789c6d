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

# The last id that a path can return.
LIMITS = {"gather_pairs": 2**24, "reduce_max_key": 2**31 - 1, "target_tie_break": 2**31 - 1}
BY_TARGET = ("target_tie_break",)


def _without_table(vocab_size: int) -> Call:
    return Call(even_layout(vocab_size, 2), "bfloat16", np.empty((0, vocab_size), np.uint16))


def _with_table(first: int, last: int) -> Call:
    table = np.array([first, first, first, last - 3])
    return Call(layout_from_sizes([2, 2]), "float32", np.zeros((0, 4), np.uint32), d2t=table)


def probes(path: str) -> dict[str, tuple[Call, bool]]:
    """What a shipped path is asked at its limits, in words, and whether it declines."""
    last = LIMITS[path]
    found = {
        f"ids up to {last}": (_without_table(last + 1), False),
        f"ids up to {last + 1}": (_without_table(last + 2), True),
        "targets up to 3": (_with_table(0, 3), False),
    }
    if path in BY_TARGET:
        found[f"targets up to {last}"] = (_with_table(0, last), False)
        found[f"targets up to {last + 1}"] = (_with_table(0, last + 1), True)
        found["a target of -1"] = (_with_table(-1, 3), True)
    return found


def declines(ranks: Ranks, path: str, call: Call) -> bool:
    """``path``: a shipped one, or another as ``--path`` names it."""
    judgement = judge(Case((call,)), ranks.run(Case((call,)), path))
    assert judgement.holds, judgement.findings
    return judgement.refused is not None


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(backend="gloo") as running:
        yield running


@pytest.mark.parametrize(("path", "what"), [(path, what) for path in LIMITS for what in probes(path)])
def test_the_last_id_that_fits_is_taken_and_the_next_is_refused(ranks: Ranks, path: str, what: str) -> None:
    call, declined = probes(path)[what]
    assert declines(ranks, path, call) is declined
