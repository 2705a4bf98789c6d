"""A run in which no row was compared is red and says so; under a failure the failure is the reason."""

from __future__ import annotations

from tests.test_command_line import pytest_run

LINE = "No row was compared: this run shows nothing and is red."
PROPERTY = "properties/test_empty_batch.py"


def test_a_run_that_compared_nothing() -> None:
    """Under pytest-xdist, whose controller knows only what the workers carried home."""
    result = pytest_run(PROPERTY, "--tp=2", "--path=tests.loop_mutants:declines", "-n", "1")
    assert result.returncode == 1 and LINE in result.stdout, result.stdout + result.stderr


def test_a_failure_is_reason_enough() -> None:
    result = pytest_run(PROPERTY, "--tp=2", "--path=tests.loop_mutants:always_raises")
    assert result.returncode == 1 and LINE not in result.stdout, result.stdout + result.stderr
