"""What every property is given: `check`, which runs a case on real ranks and judges it."""

from __future__ import annotations

import pytest

from refimpl.pytest_plugin import SESSION, CheckTarget
from refimpl.session import Checker


@pytest.fixture
def check(request: pytest.FixtureRequest) -> Checker:
    """The path under test at one tp_size, on ranks that no other test has used."""
    target: CheckTarget = request.param
    checker = Checker(request.config.stash[SESSION], target.path, target.tp_size, request.node.nodeid)
    request.node.stash[CheckTarget.CHECKER] = checker
    return checker
