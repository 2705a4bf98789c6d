"""The suite as a pytest plugin: its options, the life of the ranks around a run, and what is printed.

Loaded by ``addopts`` in pyproject.toml, before any conftest.py. Rank 0 of torchrun (or the one process without it) is
the driver: it alone collects, runs Hypothesis and reports. Every other rank serves in `pytest_cmdline_main`.
"""

from __future__ import annotations

import atexit
import os
import signal
import time
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings

from refimpl import __version__, bits, certifying, engines, head_summary, heads, known_divergences, loading, summary
from refimpl.case import MOST_RANKS, Call, Case
from refimpl.head_case import HeadRef
from refimpl.known_divergences import KnownDivergences
from refimpl.option_guard import is_for_this_project
from refimpl.ranks import limits
from refimpl.ranks.engine_runtime import engine_facts
from refimpl.ranks.generations import PathUnusable, RanksUnavailable, Spec
from refimpl.ranks.head_runtime import OWN, HeadFacts, facts_of
from refimpl.ranks.journal import Journal
from refimpl.ranks.launch import Launch, serve
from refimpl.ranks.runtime import Ranks
from refimpl.session import Checker, Failure, Session, Unknown
from refimpl.verdict import report as reports
from refimpl.verdict.judge import judge
from refimpl.verdict.kinds import Kind
from refimpl.verdict.obligations import CONTRACT, Evidence, Ledger, Status
from refimpl.verdict.obligations import render as render_ledger
from refimpl.verdict.reduce import Counterexample
from refimpl.vocab.layouts import even_layout

if TYPE_CHECKING:
    from fixtures.recorded import Recorded

SESSION = pytest.StashKey[Session]()
RECORDED = pytest.StashKey["Recorded"]()  # the rows of --logits, where it is given
HEADS = pytest.StashKey[dict[str, HeadFacts]]()  # what the ranks told of each head of --head
KNOWN = pytest.StashKey[list[tuple[Counterexample, str]]]()  # witnesses of divergences that a head states itself
ENGINE = pytest.StashKey[engines.EngineFacts]()  # of --engine, where it is given
# By test, identities of divergences that the adopter's file says are known, with the reason of each.
KNOWN_IDENTITIES = pytest.StashKey[dict[str, dict[str, str]]]()
SUMMARIES = pytest.StashKey[list[dict[str, Any]]]()
NOTHING_COMPARED = pytest.StashKey[bool]()  # and for that alone the run is red
_RUN = pytest.StashKey["_Run"]()
_PROJECT = Path(__file__).resolve().parents[1]
_FIRST_WORD_SECONDS = 15.0
FILE_OPTIONS = (
    "--logits",
    "--checkpoint",
    "--target-checkpoint",
    "--certificate",
    "--certificate-key",
    "--known-divergences",
)

# No shrink phase: failing cases are cut down by the suite's own reducer, which knows what a row is. Hypothesis' own
# clock limits would call a slow machine a failure.
_COMMON = dict(
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=tuple(HealthCheck),
    print_blob=False,
)
PROFILES = {"dev": 6, "ci": 30, "nightly": 300}
# A head's weights, beyond which its hidden size is reduced: the vocabulary, and all that depends on it, stays real.
WEIGHT_BYTES = {"dev": 16 << 20, "ci": 64 << 20, "nightly": None}
for _name, _examples in PROFILES.items():
    settings.register_profile(_name, settings(max_examples=_examples, **_COMMON))  # type: ignore[arg-type]


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


@dataclass
class _Run:
    launch: Launch
    paths: tuple[str, ...]
    tp_sizes: tuple[int, ...]
    heads: tuple[HeadRef, ...] = ()
    engine: str | None = None
    known: KnownDivergences = field(default_factory=KnownDivergences)
    ranks: Ranks | None = None
    header: str = ""
    published: bool = False


# -- options -----------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    _keep_quiet_but_on_the_first_rank()
    group = parser.getgroup("argmax-parity", "Argmax Parity")
    group.addoption(
        "--path",
        action="append",
        metavar="NAME",
        help="path under test: package.module:name, file.py:name or a shipped one "
        f"({', '.join(loading.SHIPPED_PATHS)}; all of these by default), an engine's algorithm "
        f"({', '.join(loading.PEER_PATHS)}), or a group word: own, peers; may be given several times",
    )
    group.addoption(
        "--tp",
        metavar="SIZES",
        help="tensor-parallel sizes, e.g. 2,4 (default: WORLD_SIZE under torchrun, 2 without)",
    )
    group.addoption(
        "--head",
        action="append",
        metavar="NAME",
        help="draft head to certify: a shipped or installed one, file.py:name, or all (default: the small "
        f"{heads.DEFAULT}); may be given several times",
    )
    certifying.add_options(group)
    group.addoption(
        "--engine",
        metavar="NAME",
        help=f"live engine whose own two answers are compared: {', '.join(engines.shipped())}, or an adapter as "
        "package.module or file.py (default: none, and its properties are deselected)",
    )
    group.addoption("--backend", default="auto", metavar="auto|nccl|gloo", help="auto: nccl where there are GPUs")
    group.addoption(
        "--rank-timeout",
        default="10",
        metavar="SECONDS",
        help="how long a case may take on the ranks before it is a hang (default: 10)",
    )
    group.addoption(
        "--logits",
        metavar="FILE",
        help="rows recorded from your model in place of the shipped ones: a safetensors file with logits (rows, vocab) "
        "or hidden_states and lm_head.weight, and optionally d2t and t2d",
    )
    group.addoption(
        "--known-divergences",
        metavar="FILE",
        help="your file of known divergences: a test id a line (after it, for live engines, the divergence's own "
        "name), a reason after #; unknown ids are warned about",
    )


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


def _parse_tp(text: str | None, launch: Launch) -> tuple[int, ...]:
    if text is None:
        return (launch.world_size if launch.torchrun else 2,)
    try:
        sizes = tuple(sorted({int(word) for word in text.split(",")}))
    except ValueError:
        raise pytest.UsageError(f"--tp={text}: give whole numbers separated by commas, such as --tp=2,4") from None
    if sizes[0] < 1 or sizes[-1] > MOST_RANKS:
        raise pytest.UsageError(f"--tp={text}: a tp_size is a number from 1 to {MOST_RANKS}")
    if launch.torchrun and sizes[-1] > launch.world_size:
        raise pytest.UsageError(
            f"--tp={text}: tp_size {sizes[-1]} is over WORLD_SIZE {launch.world_size}; "
            f"start torchrun with --nproc-per-node {sizes[-1]} or leave --tp out"
        )
    return sizes


def _parse_timeout(text: str) -> float:
    try:
        return limits.seconds(text)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


def _parse_heads(config: pytest.Config, profile: str) -> tuple[HeadRef, ...]:
    names = certifying.checkpoint_heads(config)
    given = config.getoption("--head") or ([] if names else [heads.DEFAULT])
    for name in given:
        try:
            names += heads.expand([name])
        except heads.HeadError as error:
            raise pytest.UsageError(f"--head={name}: {error}") from error
    return tuple(HeadRef(name, WEIGHT_BYTES[profile]) for name in dict.fromkeys(names))


def _load_logits(config: pytest.Config, name: str) -> Recorded:
    from fixtures.recorded import RecordedError, load_recorded  # once pytest has put the project on sys.path

    try:
        return load_recorded(Path(config.invocation_params.dir) / name)
    except RecordedError as error:
        raise pytest.UsageError(f"--logits={name}: {error}") from error


def refuse_empty(config: pytest.Config) -> None:
    """An empty value is a variable that was not set, and none of the files would be the one meant."""
    for option in FILE_OPTIONS:
        if config.getoption(option) == "":
            raise pytest.UsageError(f"{option}= is empty: give a file or folder, or leave the option out")


def _parse_options(config: pytest.Config) -> _Run:
    launch = Launch.from_environment()
    if launch.max_restarts:
        raise pytest.UsageError("torchrun's --max-restarts would run a red suite again; leave it out")
    if launch.torchrun and getattr(config.option, "numprocesses", None):
        raise pytest.UsageError("-n under torchrun would start ranks of ranks; use -n without torchrun, with --tp")
    refuse_empty(config)
    paths = loading.expand(config.getoption("--path") or ("own",))
    for path in paths:
        wrong = loading.check_argmax_path(path)
        if wrong:
            raise pytest.UsageError(f"--path={path}: {wrong}")
    backend = config.getoption("--backend")
    if backend not in ("auto", "nccl", "gloo"):
        raise pytest.UsageError(f"--backend={backend}: choose one of auto, nccl and gloo")
    profile = getattr(config.option, "hypothesis_profile", None)
    if profile is not None and profile not in PROFILES:
        raise pytest.UsageError(f"--hypothesis-profile={profile}: choose one of {', '.join(PROFILES)}")
    run = _Run(launch, paths, _parse_tp(config.getoption("--tp"), launch), _parse_heads(config, profile or "dev"))
    certifying.check_options(config)
    run.engine = config.getoption("--engine")
    wrong = None if run.engine is None else engines.check_name(run.engine)
    if wrong:
        raise pytest.UsageError(f"--engine={run.engine}: {wrong}")
    timeout = _parse_timeout(config.getoption("--rank-timeout"))
    run.ranks = Ranks(launch, backend, timeout, run.engine)
    known = config.getoption("--known-divergences")
    if known:
        run.known = known_divergences.read(known, config.invocation_params.dir)
    logits = config.getoption("--logits")
    if logits is not None:
        config.stash[RECORDED] = _load_logits(config, logits)
    return run


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
        run: _Run | None = None
        try:
            if _wants_ranks(config):
                run = _parse_options(config)
                config.stash[_RUN] = run
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
    run = config.stash.get(_RUN, None)
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


def _preflight(run: _Run, path: str) -> None:
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


def _header(run: _Run, facts: dict[str, Any]) -> str:
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
    run = config.stash.get(_RUN, None)
    return run.header.splitlines() if run else []


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    current = config.stash.get(SESSION, None)
    parts = config.stash[SUMMARIES]
    if current is not None:
        parts.append(current.summary())
    if hasattr(config, "workeroutput"):
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
    if "check" in metafunc.fixturenames:
        run = metafunc.config.stash.get(_RUN, None)
        # Without a run ids are only listed: those that a run with these options would have.
        paths = run.paths if run else metafunc.config.getoption("--path") or loading.SHIPPED_PATHS
        sizes = run.tp_sizes if run else _parse_tp(metafunc.config.getoption("--tp"), Launch.from_environment())
        targets = [CheckTarget(path, size) for path in paths for size in sizes]
        metafunc.parametrize("check", targets, ids=str, indirect=True)
    if "check_head" in metafunc.fixturenames:
        metafunc.parametrize("check_head", _head_targets(metafunc), ids=str, indirect=True)

    if "check_engine" in metafunc.fixturenames:
        run = metafunc.config.stash.get(_RUN, None)
        engine = run.engine if run else None
        sizes = run.tp_sizes if run and engine else (2,)
        targets_of_engine = [EngineTarget(engine or "none", size) for size in sizes]
        metafunc.parametrize("check_engine", targets_of_engine, ids=str, indirect=True)


def tp_sizes(config: pytest.Config) -> tuple[int, ...]:
    """Those of the run; 2 where it has none."""
    run = config.stash.get(_RUN, None)
    return run.tp_sizes if run else (2,)


def _head_targets(metafunc: pytest.Metafunc) -> list[HeadTarget]:
    run = metafunc.config.stash.get(_RUN, None)
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


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    run = config.stash.get(_RUN, None)
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
    """The one-screen report in place of a traceback through Hypothesis and the suite."""
    result: pytest.TestReport = yield
    error = call.excinfo.value if call.excinfo is not None else None
    checker = item.stash.get(CheckTarget.CHECKER, None)
    if checker is None or call.when != "call":
        return result
    ledger = item.config.stash[SESSION].ledger
    if isinstance(error, Failure):
        journal = item.config.stash[SESSION].journal
        texts = []
        for counterexample in error.counterexamples:
            file = reports.write_case(
                counterexample, journal.cases, property_id=item.nodeid, path=checker.path, backend=checker.backend
            )
            if not reports.is_about_topk(counterexample):  # the ledger is about the argmax
                ledger.add(_refutation(checker, counterexample, reports.shown(file)))
            texts.append(
                reports.render(
                    counterexample,
                    property_id=item.nodeid,
                    head=checker.head,
                    path=checker.path,
                    backend=checker.backend,
                    replay_command=f"argmax-parity replay {reports.shown(file)}",
                )
            )
        if result.outcome == "failed":
            result.longrepr = "\n\n".join(texts)
        return result
    for line in checker.expected:
        if checker.set_aside[line.identity]:
            kind = ", ".join(sorted(kind.value for kind in line.kinds))
            scope = f"expected on {checker.set_aside[line.identity]} rows: {line.reason}"
            ledger.add(checker.evidence(line.obligation, Status.REFUTED, kind=kind, scope=scope))
    for witness, reason in item.stash.get(KNOWN, []):
        file = reports.write_case(
            witness,
            item.config.stash[SESSION].journal.cases,
            property_id=item.nodeid,
            path=checker.path,
            backend=checker.backend,
        )
        if reports.is_about_topk(witness):
            continue
        evidence = _refutation(checker, witness, reports.shown(file))
        # A tie that the table decides: all other rows stand.
        condition = reason if witness.obligation == "O5" else ""
        ledger.add(replace(evidence, scope=f"known: {reason}", condition=condition))
    named = [name for mark in item.iter_markers("obligations") for name in mark.args]
    if isinstance(error, Unknown):
        for name in named:
            ledger.add(checker.evidence(name, Status.UNKNOWN, scope=str(error)))
        if result.outcome == "failed":
            result.longrepr = f"UNKNOWN: {error}\nThis says nothing about the path; the property was not decided."
    elif error is None or isinstance(error, pytest.skip.Exception):
        for evidence in checker.proofs:
            ledger.add(evidence)
        for name in set(named) - {evidence.obligation for evidence in checker.proofs}:
            if checker.rows:
                ledger.add(checker.evidence(name, Status.TESTED, count=checker.rows, seconds=round(call.duration, 3)))
            elif checker.refused is not None:
                ledger.add(checker.evidence(name, Status.NOT_RUN, scope=f"refused: {checker.refused}"))
    return result


def _refutation(checker: Checker, counterexample: Counterexample, witness: str) -> Evidence:
    kind = counterexample.kind
    # A reference that NumPy contradicts says nothing about the path, but nothing can be held against it either.
    status = Status.UNKNOWN if kind is Kind.REFERENCE else Status.REFUTED
    obligation = reports.obligation_of(counterexample) or CONTRACT
    return checker.evidence(
        obligation, status, kind=kind.value, witness=witness, scope=counterexample.finding.message.splitlines()[0]
    )


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
