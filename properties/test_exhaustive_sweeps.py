"""Sweeps: scopes of hours, a stretch a night, one path a night. In other profiles they are left out.

``.argmax-parity/sweeps/`` holds how far each has come; keep it from night to night.
"""

from __future__ import annotations

import datetime
import hashlib

import pytest

from properties.exhaustive import sweeps
from properties.strategies.effort import nightly
from refimpl import loading
from refimpl.session import Checker

pytestmark = pytest.mark.obligations("O1", "O2")

SECONDS = 1200.0


@pytest.mark.needs_tp(2)
def test_a_stretch_of_every_sweep(
    check: Checker, request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]
) -> None:
    """All pairs of the 16-bit dtypes, all neighbours and NaNs of float32, every column of the widest shards."""
    if not nightly():
        pytest.skip("sweeps go on in the nightly profile")
    paths = loading.expand(request.config.getoption("--path") or loading.SHIPPED_PATHS)
    tonight = paths[datetime.datetime.now(datetime.timezone.utc).toordinal() % len(paths)]
    if check.path != tonight:
        pytest.skip(f"tonight the sweeps of {tonight} go on")
    name = hashlib.sha256(check.path.encode()).hexdigest()[:12]
    file = request.config.rootpath / ".argmax-parity" / "sweeps" / f"{name}-tp{check.tp_size}-{check.backend}.json"
    progress = sweeps.Progress(file, check.source_digest())
    found = sweeps.all_sweeps(check.tp_size)

    def say(text: str) -> None:
        with capfd.disabled():
            print(f"\nsweeps of {check.path}, tp {check.tp_size}: {text}", flush=True)

    sweeps.go_on(check, found, progress, SECONDS, say)
    for sweep in found:
        share = progress.share(sweep)
        check.note(f"sweep at tp {check.tp_size}, {share:.2%} done: {sweep.words}")
