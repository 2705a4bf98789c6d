"""Rows of a real model, through both paths at every tp_size asked for: the file of ``--logits``, or the shipped one.

The shipped rows come from a real embedding matrix whose 30522 rows are no multiple of 64, and a quarter of them tie at
the top (``fixtures/logits/README.md``). A table in the file decides ties as everywhere: by the lowest target id.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fixtures.recorded import Recorded, load_recorded
from refimpl import bits
from refimpl.case import Call, Case
from refimpl.run_state import RECORDED
from refimpl.session import Checker, Failure, Unknown
from refimpl.verdict.judge import Tally, judge
from refimpl.vocab.d2t import targets
from refimpl.vocab.layouts import Layout, padded_layout, uneven_layout

pytestmark = pytest.mark.obligations("O1", "O3", "O4")

SHIPPED = Path(__file__).resolve().parents[1] / "fixtures" / "logits" / "minilm-l6-v2.safetensors"
_BLOCK_VALUES = 1 << 19


def engine_layout(vocab_size: int, tp_size: int) -> Layout:
    """As engines cut a vocabulary: padded to a multiple of 64, of tp_size too where 64 alone does not divide evenly."""
    return padded_layout(vocab_size, tp_size, pad_to_tp_size=(-(-vocab_size // 64) * 64) % tp_size != 0)


LAYOUTS = {"engine": engine_layout, "uneven": uneven_layout}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "recorded" in metafunc.fixturenames:
        file = metafunc.config.getoption("--logits") or str(SHIPPED)
        metafunc.parametrize("recorded", [file], ids=[re.sub(r"[^\w.-]", "_", Path(file).stem)], indirect=True)


@pytest.fixture
def recorded(request: pytest.FixtureRequest) -> Recorded:
    given = request.config.stash.get(RECORDED, None)  # loaded once, when the options were read
    return load_recorded(SHIPPED) if given is None else given


@pytest.mark.parametrize("cut", LAYOUTS)
def test_recorded_rows(check: Checker, recorded: Recorded, cut: str) -> None:
    """Recorded logits give the full gather's tokens, tied rows and rows next to hostile padding among them."""
    layout = LAYOUTS[cut](recorded.vocab_size, check.tp_size)
    total, divergent = Tally(), 0
    failure: Failure | None = None
    for case in blocks(recorded, layout):
        if failure is None:
            try:
                total.add(check(case).tally)
                continue
            except Failure as first:
                failure = first
        # One failure is cut down and reported. What follows is only counted, as far as the ranks come through it.
        try:
            judgement = judge(case, check.run(case))
        except Unknown:
            break
        if not judgement.tally.calls:
            break
        total.add(judgement.tally)
        divergent += len({row for finding in judgement.findings for row in finding.rows})
    if total.rows:
        check.note(
            f"{recorded.name}, tp {check.tp_size}, {cut} layout: {total.rows} rows compared, {total.tied_rows} top-1 "
            f"ties, {total.cross_shard_ties} ties across shards, {divergent} divergences"
        )
    if failure is not None:
        raise failure


def blocks(recorded: Recorded, layout: Layout) -> Iterator[Case]:
    """All rows, a few at a time; what the reference holds of one is the target vocabulary where there is a table."""
    width = recorded.vocab_size if recorded.d2t is None else int(targets(recorded.d2t).max()) + 1
    step = max(1, _BLOCK_VALUES // max(width, recorded.vocab_size))
    infinity = bits.INFINITY[recorded.dtype]
    padding = (bits.NAN[recorded.dtype], infinity, infinity - 1)  # each would win its row
    for begin in range(0, recorded.num_rows, step):
        rows = np.array(recorded.logits[begin : begin + step])
        yield Case((Call(layout, recorded.dtype, rows, padding, recorded.d2t),))
