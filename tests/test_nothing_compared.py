"""A run in which no row was compared is red and says so; under a failure the failure is the reason."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.test_command_line import environment, pytest_run, run

LINE = "No row was compared: this run shows nothing and is red."
PROPERTY = "properties/test_empty_batch.py"


def test_a_run_that_compared_nothing() -> None:
    """Under pytest-xdist, whose controller knows only what the workers carried home."""
    result = pytest_run(PROPERTY, "--tp=2", "--path=tests.loop_mutants:declines", "-n", "1")
    assert result.returncode == 1 and LINE in result.stdout, result.stdout + result.stderr


ENDS = """
import pytest

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session):
    result = yield  # raises what any hook of the end has raised, which pytest-xdist keeps to itself
    if hasattr(session.config, "workerinput"):
        open({file!r}, "w").close()
    return result
"""


def test_a_worker_of_a_run_without_ranks_ends_in_order(tmp_path: Path) -> None:
    """The suite's own tests are such a run: there is no summary to carry home."""
    (tmp_path / "ends.py").write_text(ENDS.format(file=str(tmp_path / "ended")))
    env = {**environment(), "PYTHONPATH": str(tmp_path)}
    result = run(sys.executable, "-m", "pytest", "tests/test_wire.py", "-n", "1", "-p", "ends", env=env)
    assert result.returncode == 0, result.stdout
    assert (tmp_path / "ended").exists()


def test_a_failure_is_reason_enough() -> None:
    result = pytest_run(PROPERTY, "--tp=2", "--path=tests.loop_mutants:always_raises")
    assert result.returncode == 1 and LINE not in result.stdout, result.stdout + result.stderr
