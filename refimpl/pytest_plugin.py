"""The suite as a pytest plugin: its options, the life of the ranks around a run, and what is printed.

Loaded by ``addopts`` in pyproject.toml, before any conftest.py. Rank 0 of torchrun (or the one process without it) is
the driver: it alone collects, runs Hypothesis and reports. Every other rank serves in `pytest_cmdline_main`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from refimpl import (
    __version__,
    bits,
    certifying,
    engines,
    evidence,
    head_summary,
    heads,
    known_divergences,
    loading,
    options,
    summary,
    targets,
)
from refimpl.case import Call, Case
from refimpl.option_guard import is_for_this_project
from refimpl.ranks.engine_runtime import engine_facts
from refimpl.ranks.generations import PathUnusable, RanksUnavailable, Spec
from refimpl.ranks.head_runtime import facts_of
from refimpl.ranks.journal import Journal
from refimpl.ranks.launch import Launch, serve
from refimpl.run_state import ENGINE, HEADS, KNOWN_IDENTITIES, NOTHING_COMPARED, RUN, SESSION, SUMMARIES, RunOptions
from refimpl.session import Session
from refimpl.targets import CheckTarget
from refimpl.verdict import report as reports
from refimpl.verdict.judge import judge
from refimpl.verdict.kinds import Kind
from refimpl.verdict.obligations import Ledger
from refimpl.verdict.obligations import render as render_ledger
from refimpl.vocab.layouts import even_layout

_PROJECT = Path(__file__).resolve().parents[1]
_FIRST_WORD_SECONDS = 15.0


def pytest_addoption(parser: pytest.Parser) -> None:
    _keep_quiet_but_on_the_first_rank()
    options.add_options(parser)


def _keep_quiet_but_on_the_first_rank() -> None:
    """Every rank parses the command line; one report of a bad flag is enough."""
    # This early, since pytest's capture later keeps copies of both descriptors and puts them back.
    if Launch.from_environment().local_rank > 0:
        quiet = os.open(os.devnull, os.O_WRONLY)
        for number in (1, 2):
            os.dup2(quiet, number)
        os.close(quiet)
    if not Launch.from_environment().is_driver:
        atexit.register(_end_after_the_first_rank)


def _end_after_the_first_rank() -> None:
    """A rank that ends red has torchrun end the others, and rank 0 may not have said yet what is wrong."""
    # torchrun ends this sleep as soon as rank 0 is gone.
    time.sleep(_FIRST_WORD_SECONDS)


def _wants_ranks(config: pytest.Config) -> bool:
    """Whether the run is about properties; the suite's own tests bring ranks of their own."""
    if config.option.help or config.option.version or config.option.collectonly:
        return False
    properties = _PROJECT / "properties"
    directory = config.invocation_params.dir
    places = [(directory / arg.split("::")[0]).resolve() for arg in config.args]
    return any(place in (properties, *properties.parents) or properties in place.parents for place in places)


def _is_controller(config: pytest.Config) -> bool:
    """A pytest-xdist controller hands tests out and runs none."""
    return bool(getattr(config.option, "numprocesses", None)) and not hasattr(config, "workerinput")


# -- the life of a run -------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """On every torchrun rank but 0: serve until the driver is done, and end as it does."""
    launch = Launch.from_environment()
    if launch.is_driver:
        return None
    atexit.unregister(_end_after_the_first_rank)  # it ends with the driver's farewell
    return serve(launch)


class _Driver:
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> Generator[None, Any, Any]:
        """On the driver: the hub is open before collection, and every way out says farewell to the other ranks."""
        launch = Launch.from_environment()
        if not launch.is_driver:
            return (yield)
        status = 1
        previous = signal.signal(signal.SIGTERM, _interrupt) if not hasattr(config, "workerinput") else None
        run: RunOptions | None = None
        try:
            if _wants_ranks(config):
                run = options.parse_options(config)
                config.stash[RUN] = run
                assert run.ranks is not None
                run.ranks.listen()
                run.published = True
            status = yield
            return status
        except pytest.UsageError:
            status = 4
            raise
        finally:
            try:
                if run is not None and run.ranks is not None:
                    run.ranks.close(int(status))
            finally:
                if launch.torchrun and launch.world_size > 1 and not (run and run.published):
                    launch.send_home(int(status))
                if previous is not None:
                    signal.signal(signal.SIGTERM, previous)


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt("SIGTERM")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    early_config.pluginmanager.register(_Driver(), "argmax-parity-driver")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs_tp(n): the property needs tp_size n or more")
    config.addinivalue_line("markers", "obligations(O1, ...): what rows that hold are evidence for, see the ledger")
    config.addinivalue_line("markers", "head: the property is about a draft head, see --head")
    config.addinivalue_line("markers", "needs_path: the property is about heads that leave the reduction to a path")
    config.addinivalue_line("markers", "needs_own_answers: the property is about heads that answer for themselves")
    config.addinivalue_line("markers", "needs_hidden_states: the property is about heads that make logits or tokens")
    config.addinivalue_line("markers", "about_tables: the property of a head is decided under a wrong table too")
    config.addinivalue_line("markers", "needs_table: the property is about heads that have a table")
    config.addinivalue_line("markers", "needs_known: the property is about heads that state a known divergence")
    config.addinivalue_line("markers", "needs_cuda: the property runs on nccl only")
    config.stash[SUMMARIES] = []
    if getattr(config.option, "hypothesis_profile", None) is None and is_for_this_project(
        [str(arg) for arg in config.args], config.invocation_params.dir
    ):
        # Hypothesis loads a profile of its own on CI machines; the suite's sizes must not depend on that.
        settings.load_profile("dev")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    run = config.stash.get(RUN, None)
    if run is None:
        return
    assert run.ranks is not None
    try:
        run.ranks.open()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    except RanksUnavailable as error:
        raise pytest.UsageError(f"the ranks could not be started: {error}") from error
    if not hasattr(config, "workerinput"):
        for path in run.paths:
            _preflight(run, path)
    config.stash[HEADS] = {}
    for ref in run.heads:
        try:
            config.stash[HEADS][ref.name] = facts_of(run.ranks, ref, run.tp_sizes)
        except heads.HeadError as error:
            raise pytest.UsageError(f"--head={ref.name}: {error}") from error
        except RanksUnavailable as error:
            raise pytest.UsageError(f"the ranks could not be started: {error}") from error
    if run.engine is not None:
        try:
            config.stash[ENGINE] = engine_facts(run.ranks, run.engine)
        except engines.EngineUnusable as error:
            raise pytest.UsageError(f"--engine={run.engine}: {error}") from error
        except RanksUnavailable as error:
            raise pytest.UsageError(f"--engine={run.engine}: {error} while the engine was loaded") from error
    facts = run.ranks.facts(Spec(loading.qualified(run.paths[0]), run.tp_sizes[0]))
    run.header = _header(run, facts)
    certifying.remember_run(config, run.ranks, facts, run.paths, run.tp_sizes, config.stash[HEADS])
    if run.engine is not None:
        run.header += f"\n{config.stash[ENGINE].words}"
    run.ranks.retire()
    if _is_controller(config):
        run.ranks.close(0)
        return
    label = config.workerinput["workerid"] if hasattr(config, "workerinput") else "main"
    root = config.rootpath / ".argmax-parity"
    try:
        journal = Journal(root, label)
    except OSError as error:
        raise pytest.UsageError(
            f"the journal cannot be written below {root} ({error.strerror}); run in a copy that you may write to"
        ) from error
    journal.line("start", version=__version__, paths=run.paths, tp_sizes=run.tp_sizes, **facts)
    config.stash[SESSION] = Session(run.ranks, journal)


def _preflight(run: RunOptions, path: str) -> None:
    """One plain call at each tp_size: is this a path at all? Everything subtler is for the properties."""
    assert run.ranks is not None
    for tp_size in run.tp_sizes:
        logits = bits.encode(np.arange(8 * tp_size, dtype=np.float64).reshape(2, -1) % 7, "float32")
        case = Case((Call(even_layout(4 * tp_size, tp_size), "float32", logits),))
        try:
            misfit = run.ranks.facts(Spec(loading.qualified(path), tp_size))["misfit"]
            if misfit is not None:
                raise pytest.UsageError(f"--path={path}: {misfit}")
            outcome = run.ranks.run(case, path)
        except PathUnusable as error:
            raise pytest.UsageError(f"--path={path}: {error}") from error
        except RanksUnavailable as error:
            raise pytest.UsageError(f"the ranks could not be started: {error}") from error
        for finding in judge(case, outcome).findings:
            if finding.kind is Kind.RESULT_TYPE:
                rank = finding.ranks[0]
                raise pytest.UsageError(f"--path={path}: rank {rank} {outcome.ranks[rank].calls[-1].message}")


def _header(run: RunOptions, facts: dict[str, Any]) -> str:
    assert run.ranks is not None
    backend = run.ranks.backend
    where = f"torchrun, {run.launch.world_size} processes" if run.launch.torchrun else "own ranks"
    if run.launch.nodes > 1:
        where += f" of {run.launch.nodes} agents"
    sharing = ", ranks share a GPU (a correctness mode)" if backend.shared_gpu else ""
    nccl = f", NCCL {facts['nccl']}" if facts.get("nccl") else ""
    sizes = ",".join(map(str, run.tp_sizes))
    return (
        f"argmax-parity {__version__}: {', '.join(run.paths)} against full_gather and NumPy\n"
        f"ranks: tp {sizes}, {backend.name} on {facts['device']}{sharing}, {where}, torch {facts['torch']}{nccl}"
    )


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    run = config.stash.get(RUN, None)
    return run.header.splitlines() if run else []


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    current = config.stash.get(SESSION, None)
    parts = config.stash[SUMMARIES]
    if current is not None:
        if exitstatus in (0, 1):
            with contextlib.suppress(RanksUnavailable):
                current.ranks.retire()  # the last test's teardown is heard as well
        parts.append(current.summary())
    if hasattr(config, "workeroutput"):
        if parts:  # the suite's own tests have none
            config.workeroutput["argmax_parity"] = parts[-1]
    elif exitstatus == 0 and parts and not summary.compared(parts):
        session.exitstatus = 1  # green without a single row compared would be no verdict
        config.stash[NOTHING_COMPARED] = True
    certifying.finish(session, parts)
    if current is None:
        return
    current.journal.close(int(session.exitstatus))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A pytest-xdist worker is done: take its numbers into the one merged summary."""
    output = getattr(node, "workeroutput", {})
    if "argmax_parity" in output:
        node.config.stash[SUMMARIES].append(output["argmax_parity"])


# -- tests -------------------------------------------------------------------------------------------


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    targets.parametrize(metafunc)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    run = config.stash.get(RUN, None)
    if run is None:
        return
    kept: list[pytest.Item] = []
    dropped: list[pytest.Item] = []
    unasked = 0
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        target = params.get("check") or params.get("check_topk")
        needs = item.get_closest_marker("needs_tp")
        short = target is not None and needs is not None and target.tp_size < needs.args[0]
        asleep = run.engine is None and hasattr(item, "callspec") and "check_engine" in item.callspec.params
        unasked += asleep
        (dropped if short or asleep else kept).append(item)
        if item.get_closest_marker("needs_cuda") and run.ranks is not None and run.ranks.backend.name != "nccl":
            item.add_marker(pytest.mark.skip(reason="runs on nccl only, this run is on gloo"))
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept
    if unasked:
        run.header += f"\n{unasked} properties of live engines are deselected: they run with --engine=NAME"
    config.stash[KNOWN_IDENTITIES] = known_divergences.apply(run.known, config, items)
    config.stash[SESSION].expected += run.known.rows


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    result = yield
    checker = item.stash.get(CheckTarget.CHECKER, None)
    if checker is not None and checker.set_aside:
        pytest.xfail(
            f"expected divergence: {', '.join(f'{name} on {n} rows' for name, n in checker.set_aside.items())}"
        )
    if checker is not None and checker.refused is not None and not checker.compared:
        pytest.skip(f"every case was refused: {checker.refused}")
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    return evidence.enter(item, call, (yield))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    parts = terminalreporter.config.stash.get(SUMMARIES, [])
    if not parts:
        return
    terminalreporter.section("argmax parity")
    for report in terminalreporter.stats.get("xpassed", []):
        terminalreporter.write_line(f"known divergence no longer fails, take it off the list: {report.nodeid}")
    for line in summary.render(parts):
        terminalreporter.write_line(line)
    ledger = Ledger.merged(part["evidence"] for part in parts)
    for line in render_ledger(Ledger(entry for entry in ledger.entries if entry.head is None)):
        terminalreporter.write_line(line)
    for line in head_summary.render(parts):
        terminalreporter.write_line(line)
    for line in certifying.lines(terminalreporter.config):
        terminalreporter.write_line(line)
    if terminalreporter.config.stash.get(NOTHING_COMPARED, False):
        terminalreporter.write_line("No row was compared: this run shows nothing and is red.", red=True)
    current = terminalreporter.config.stash.get(SESSION, None)
    if current is not None and current.journal.interrupted is not None:
        file = reports.shown(current.journal.interrupted)
        terminalreporter.write_line(f"interrupted at a case, to run it again: argmax-parity replay {file}")
