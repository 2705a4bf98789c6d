"""What a parametrised property is about: a path, a head with a path, or a live engine, at one tp_size."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from refimpl import certifying, heads, loading
from refimpl.options import parse_tp
from refimpl.ranks.head_runtime import OWN
from refimpl.ranks.launch import Launch
from refimpl.run_state import HEADS, RUN
from refimpl.session import Checker


@dataclass(frozen=True)
class CheckTarget:
    """What one parametrised test is about."""

    path: str
    tp_size: int

    CHECKER = pytest.StashKey[Checker]()

    def __str__(self) -> str:
        return f"{self.path}-tp{self.tp_size}"


@dataclass(frozen=True)
class HeadTarget:
    """What one parametrised test of a head is about. ``path``: `OWN` for a head that answers for itself."""

    head: str
    path: str
    tp_size: int

    def __str__(self) -> str:
        return f"{certifying.shown(self.head)}-{self.path}-tp{self.tp_size}"


@dataclass(frozen=True)
class EngineTarget:
    """What one parametrised test of a live engine is about."""

    engine: str
    tp_size: int

    def __str__(self) -> str:
        return f"{self.engine}-tp{self.tp_size}"


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Give a property its targets: paths, heads or the engine of the run, at each tp_size."""
    if "check" in metafunc.fixturenames:
        run = metafunc.config.stash.get(RUN, None)
        # Without a run ids are only listed: those that a run with these options would have.
        paths = run.paths if run else loading.expand(metafunc.config.getoption("--path") or ("own",))
        sizes = run.tp_sizes if run else parse_tp(metafunc.config.getoption("--tp"), Launch.from_environment())
        targets = [CheckTarget(path, size) for path in paths for size in sizes]
        metafunc.parametrize("check", targets, ids=str, indirect=True)
    if "check_head" in metafunc.fixturenames:
        metafunc.parametrize("check_head", _head_targets(metafunc), ids=str, indirect=True)
    if "check_engine" in metafunc.fixturenames:
        run = metafunc.config.stash.get(RUN, None)
        engine = run.engine if run else None
        sizes = run.tp_sizes if run and engine else (2,)
        targets_of_engine = [EngineTarget(engine or "none", size) for size in sizes]
        metafunc.parametrize("check_engine", targets_of_engine, ids=str, indirect=True)


def tp_sizes(config: pytest.Config) -> tuple[int, ...]:
    """Those of the run; 2 where it has none."""
    run = config.stash.get(RUN, None)
    return run.tp_sizes if run else (2,)


def _head_targets(metafunc: pytest.Metafunc) -> list[HeadTarget]:
    run = metafunc.config.stash.get(RUN, None)
    if run is None:
        return [HeadTarget(heads.DEFAULT, path, 2) for path in loading.SHIPPED_PATHS]
    needs = {mark.name for mark in metafunc.definition.iter_markers()}
    targets = []
    for name, facts in metafunc.config.stash.get(HEADS, {}).items():
        if "needs_path" in needs and facts.own_tokens:
            continue
        if "needs_own_answers" in needs and not facts.own_tokens:
            continue
        if "needs_hidden_states" in needs and not facts.starts_from_hidden_states:
            continue
        if "needs_table" in needs and facts.d2t is None and facts.figures.get("table_fault") is None:
            continue
        if "needs_known" in needs and (not facts.figures["known"] or name.startswith(heads.CHECKPOINT)):
            continue  # what is known of a checkpoint was not stated by anyone, and has a witness of its own
        paths = (OWN,) if facts.own_tokens else run.paths
        targets += [HeadTarget(name, path, size) for path in paths for size in run.tp_sizes]
    return targets
