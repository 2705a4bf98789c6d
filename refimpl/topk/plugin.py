"""Top-k in a pytest run: ``--topk-path``, what ``check_topk`` is about, and its report in place of a traceback."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from refimpl import loading
from refimpl.targets import CheckTarget, tp_sizes
from refimpl.topk.checker import TopKFailure

DEFAULT = "gather_topk_candidates"
# With one of these a run is about something else: top-k comes along only where it is asked for.
_ABOUT_ANOTHER = ("--path", "--head", "--checkpoint", "--logits")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("argmax-parity", "Argmax Parity")
    group.addoption(
        "--topk-path",
        action="append",
        metavar="NAME",
        help=f"top-k path under test (docs/topk.md); default: {DEFAULT}, in runs without {', '.join(_ABOUT_ANOTHER)}",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    for path in session.config.getoption("--topk-path") or ():
        wrong = loading.check_topk_path(path)
        if wrong:
            raise pytest.UsageError(f"--topk-path={path}: {wrong}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "check_topk" in metafunc.fixturenames:
        paths = dict.fromkeys(metafunc.config.getoption("--topk-path") or (DEFAULT,))
        targets = [CheckTarget(path, size) for path in paths for size in tp_sizes(metafunc.config)]
        metafunc.parametrize("check_topk", targets, ids=str, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--topk-path") or not any(config.getoption(name, None) for name in _ABOUT_ANOTHER):
        return
    dropped = [item for item in items if "check_topk" in getattr(item, "fixturenames", ())]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in dropped]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    result: pytest.TestReport = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, TopKFailure) and result.outcome == "failed":
        result.longrepr = str(call.excinfo.value)
    return result
