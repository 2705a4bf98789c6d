"""Generations of ranks: a spare is up before it is needed, holds no code under test, and is never a reason to fail."""

from __future__ import annotations

import os
import signal
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from refimpl import bits
from refimpl.case import Call, Case
from refimpl.ranks.generations import Generation, Generations, Shape
from refimpl.ranks.runtime import Ranks
from refimpl.verdict.judge import judge
from refimpl.vocab.layouts import even_layout


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    with Ranks(backend="gloo", limit=4.0) as ranks:
        yield ranks


def a_case(tp_size: int = 2, bystanders: int = 0) -> Case:
    logits = np.random.default_rng(0).choice(bits.landmarks("bfloat16"), (4, 9))
    return Case((Call(even_layout(9, tp_size), "bfloat16", logits),), bystanders)


def generations(ranks: Ranks) -> Generations:
    assert ranks._generations is not None
    return ranks._generations


def the_spare(ranks: Ranks) -> Generation:
    """The only one that waits, once its groups are open."""
    [spare] = generations(ranks)._spares.values()
    assert ranks._hub is not None
    deadline = time.monotonic() + 30
    while len(spare.opened) < spare.shape.world_size:
        assert time.monotonic() < deadline
        for event in ranks._hub.poll(0.1):
            generations(ranks).note(event)
    return spare


def pids(generation: Generation) -> list[int]:
    return [peer.hello["pid"] for peer in generation.peers.values()]


def holds(ranks: Ranks, case: Case, path: str = "gather_pairs") -> bool:
    return judge(case, ranks.run(case, path)).holds


def test_no_code_under_test_is_in_a_spare(ranks: Ranks, tmp_path: Path) -> None:
    file = tmp_path / "noted.py"
    file.write_text(
        textwrap.dedent(
            f"""
            import os, pathlib
            from refimpl.paths.gather_pairs import gather_pairs
            (pathlib.Path({str(tmp_path)!r}) / str(os.getpid())).touch()
            def path(logits, shard, group, d2t=None):
                return gather_pairs(logits, shard, group, d2t)
            """
        )
    )
    assert holds(ranks, a_case(), f"{file}:path")
    spare = the_spare(ranks)
    time.sleep(0.2)
    imported = {int(name.name) for name in tmp_path.iterdir() if name.name.isdigit()}
    assert len(imported) == 2 and not imported & set(pids(spare))


def test_the_spare_is_what_comes_next_whatever_the_path(ranks: Ranks) -> None:
    assert holds(ranks, a_case())
    spare = pids(the_spare(ranks))
    ranks.retire()
    assert holds(ranks, a_case(), "reduce_max_key")
    [adopted] = generations(ranks)._adopted.values()
    assert sorted(pids(adopted)) == sorted(spare)
    assert ranks.generations_started == 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP])
def test_a_spare_that_breaks_is_no_failure_of_a_path(
    ranks: Ranks, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("refimpl.ranks.generations._SPARE_SECONDS", 0.5)
    assert holds(ranks, a_case())
    spare = the_spare(ranks)
    broken = pids(spare)
    if number is signal.SIGSTOP:
        spare.opened.clear()  # as if it had never got that far
    for pid in broken:
        os.kill(pid, number)
    ranks.retire()
    assert holds(ranks, a_case())
    [adopted] = generations(ranks)._adopted.values()
    assert not set(pids(adopted)) & set(broken)
    assert not any(psutil.pid_exists(pid) for pid in broken)


def test_few_spares_wait_and_none_for_rare_shapes(ranks: Ranks) -> None:
    for case in (a_case(1), a_case(2), a_case(3), a_case(2, bystanders=1)):
        assert holds(ranks, case)
    assert list(generations(ranks)._spares) == [Shape(2), Shape(3)]


def test_nothing_is_left_of_a_spare(ranks: Ranks) -> None:
    assert holds(ranks, a_case())
    left = pids(the_spare(ranks))
    ranks.close(0)
    assert not any(psutil.pid_exists(pid) for pid in left)
