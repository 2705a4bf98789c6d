"""What properties are given: `check`, `check_head` and `check_engine`, which run a case on real ranks and judge it."""

from __future__ import annotations

import pytest

from refimpl.engine_check import EngineChecker
from refimpl.head_check import HeadChecker
from refimpl.ranks.head_runtime import OWN
from refimpl.run_state import ENGINE, HEADS, KNOWN, KNOWN_IDENTITIES, SESSION
from refimpl.session import Checker
from refimpl.targets import CheckTarget, EngineTarget, HeadTarget
from refimpl.topk.checker import TopKChecker


@pytest.fixture
def check(request: pytest.FixtureRequest) -> Checker:
    """The path under test at one tp_size, on ranks that no other test has used."""
    target: CheckTarget = request.param
    checker = Checker(request.config.stash[SESSION], target.path, target.tp_size, request.node.nodeid)
    request.node.stash[CheckTarget.CHECKER] = checker
    return checker


@pytest.fixture
def check_head(request: pytest.FixtureRequest) -> HeadChecker:
    """A head with the path under test (or its own answers) at one tp_size, on ranks that no other test has used."""
    target: HeadTarget = request.param
    session = request.config.stash[SESSION]
    checker = Checker(session, target.path, target.tp_size, request.node.nodeid)
    checker.head = target.head
    request.node.stash[CheckTarget.CHECKER] = checker
    found = HeadChecker(checker, session, request.config.stash[HEADS][target.head])
    request.node.stash[KNOWN] = found.known_divergences
    if found.no_layout is not None:
        found.tally.refused[found.no_layout] += 1
        pytest.skip(f"head {target.head} has no layout at tp_size {target.tp_size}: {found.no_layout}")
    if found.facts.bad_table is not None and not request.node.get_closest_marker("about_tables"):
        pytest.skip(f"the table of head {target.head} is refuted, no row is compared under it: {found.facts.bad_table}")
    return found


@pytest.fixture
def check_topk(request: pytest.FixtureRequest) -> TopKChecker:
    """A top-k path at one tp_size, on ranks that no other test has used."""
    target: CheckTarget = request.param
    return TopKChecker(request.config.stash[SESSION], target.path, target.tp_size, request.node.nodeid)


@pytest.fixture
def check_engine(request: pytest.FixtureRequest) -> EngineChecker:
    """A live engine's two answers at one tp_size, on ranks that no other test has used."""
    target: EngineTarget = request.param
    session = request.config.stash[SESSION]
    facts = request.config.stash[ENGINE]
    checker = Checker(session, OWN, target.tp_size, request.node.nodeid)
    checker.head = facts.title
    request.node.stash[CheckTarget.CHECKER] = checker
    known = request.config.stash[KNOWN_IDENTITIES].get(request.node.nodeid, {})
    found = EngineChecker(checker, session, facts, target.engine, known)
    request.node.stash[KNOWN] = found.witnesses
    return found
