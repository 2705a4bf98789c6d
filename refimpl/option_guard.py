"""Keeps folders that an option names from being taken for test folders.

pytest decides on its configuration file, and on the conftest.py files to import, before it knows this project's
options: of ``--logits DIR`` it then sees an unknown flag and a folder, and would adopt DIR's pyproject.toml and run
DIR's conftest.py. This module is a pytest entry point, loaded before any conftest.py; it joins such pairs to
``--logits=DIR`` and, where pytest has already looked at the folder, starts over with the joined form. It does nothing
in any run that uses none of these options for this project.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

VALUE_OPTIONS = (
    "--path",
    "--topk-path",
    "--tp",
    "--head",
    "--checkpoint",
    "--target-checkpoint",
    "--logits",
    "--backend",
    "--certificate",
    "--certificate-key",
    "--rank-timeout",
    "--setup-timeout",
    "--known-divergences",
    "--hypothesis-profile",
)
_PROJECT = Path(__file__).resolve().parents[1]


def joined(args: list[str]) -> list[str]:
    """``--opt value`` as ``--opt=value`` for this project's options; everything else untouched."""
    result: list[str] = []
    pending = None
    for index, arg in enumerate(args):
        if pending is not None:
            result.append(f"{pending}={arg}")
            pending = None
        elif arg in VALUE_OPTIONS and index + 1 < len(args) and not args[index + 1].startswith("--"):
            pending = arg
        else:
            result.append(arg)
    return result


def is_for_this_project(args: list[str], invocation_dir: Path) -> bool:
    """Whether a run collects from this project: by an argument, or, without any, by where it was started."""
    named = [invocation_dir / arg.split("::")[0] for arg in args if not arg.startswith("-")]
    places = [place.resolve() for place in named if place.exists()] or [invocation_dir.resolve()]
    return any(place == _PROJECT or _PROJECT in place.parents for place in places)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Runs before any conftest.py is imported."""
    given = list(early_config.invocation_params.args)
    safe = joined([str(arg) for arg in given])
    if safe == given or hasattr(early_config, "workerinput"):
        return
    if not is_for_this_project(safe, Path(early_config.invocation_params.dir)):
        return
    original = sys.orig_argv
    if original[len(original) - len(given) :] != given:
        raise pytest.UsageError("called from within a program, give options that name files as --option=value")
    capture = early_config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        capture.stop_global_capturing()  # or the new process would write into this one's capture files
    sys.stdout.flush()
    sys.stderr.flush()
    command = original[: len(original) - len(given)] + safe
    os.execv(sys.executable, [sys.executable, *command[1:]])
