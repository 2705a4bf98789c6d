"""Certification around a run: its options, what the verdicts are about, the certificate and summaries at the end.

The checkpoint, the key and the place of the certificate are looked at before anything runs: a run is not lost to a
typing mistake. Under pytest-xdist the controller alone writes, from what all workers carried home.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import tempfile
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from refimpl import loading, summary
from refimpl.head_summary import merge as merge_heads
from refimpl.ranks.generations import Spec
from refimpl.ranks.runtime import Ranks
from refimpl.verdict import certificate, envelope, readable, verdict
from refimpl.verdict.kinds import Kind
from refimpl.verdict.obligations import Evidence, Ledger, Status
from refimpl.verdict.subjects import Subject, of_checkpoint, of_source
from refimpl.verdict.verdict import OWN, Setting, Verdict, Word

if TYPE_CHECKING:
    from fixtures.checkpoints.draft import Draft
    from refimpl.ranks.head_runtime import HeadFacts

_STATE = pytest.StashKey["_State"]()
_PROPERTIES = Path(__file__).resolve().parents[1] / "properties"
# Options of pytest by which a run leaves tests out.
_SELECTIONS = {
    "keyword": "-k",
    "markexpr": "-m",
    "deselect": "--deselect",
    "lf": "--last-failed",
    "stepwise": "--stepwise",
    "ignore": "--ignore",
    "ignore_glob": "--ignore-glob",
}
_PACKAGES = ("torch", "hypothesis", "pytest", "numpy", "safetensors")


@dataclass
class _Outcomes:
    """A plugin of its own: what became of every test, reports of pytest-xdist workers included."""

    passed: list[str] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.ended.add(report.nodeid)
        if report.failed:
            self.failed.append(report.nodeid)
        elif report.skipped:  # known divergences, and what the path refuses
            self.warned.append(report.nodeid)
        elif report.when == "call":
            (self.warned if hasattr(report, "wasxfail") else self.passed).append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)


@dataclass
class _State:
    certificate: Path | None = None
    signer: Any = None
    draft: Draft | None = None
    target: Path | None = None
    asked: bool = False
    checkpoint_subjects: list[Subject] = field(default_factory=list)
    stamps: dict[Path, tuple[int, int]] = field(default_factory=dict)
    outcomes: _Outcomes = field(default_factory=_Outcomes)
    setting: Setting | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    paths: tuple[str, ...] = ()
    heads: dict[str, HeadFacts] = field(default_factory=dict)
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


# -- options -----------------------------------------------------------------------------------------


def add_options(group: pytest.OptionGroup) -> None:
    group.addoption(
        "--checkpoint", metavar="DIR", help="draft head to certify: a checkpoint folder, see docs/certify.md"
    )
    group.addoption("--target-checkpoint", metavar="DIR", help="the target's folder, for drafts that share its lm_head")
    group.addoption("--certificate", metavar="OUT.json", help="write the verdicts as an in-toto statement, and OUT.md")
    group.addoption("--certificate-key", metavar="PEM", help="sign the certificate with this private key (extra: sign)")


def checkpoint_heads(config: pytest.Config) -> list[str]:
    """The name of the checkpoint's head, where one is given. Raises UsageError."""
    from fixtures.checkpoints import open_draft  # once pytest has put the project on sys.path
    from fixtures.checkpoints.names import name_of, places_in
    from fixtures.checkpoints.tensors import CheckpointError

    state = config.stash.setdefault(_STATE, _State())
    given, target = config.getoption("--checkpoint"), config.getoption("--target-checkpoint")
    here = Path(config.invocation_params.dir)
    if target is not None and given is None:
        raise pytest.UsageError(f"--target-checkpoint={target}: it goes with --checkpoint=DIR, the draft's folder")
    if given is None:
        return []
    folder = (here / given).absolute()
    state.target = None if target is None else (here / target).absolute()
    if places_in(name_of(folder, state.target)) != (folder, state.target):
        raise pytest.UsageError(f"--checkpoint={given}: a folder of this name cannot be told to the ranks; rename it")
    try:
        state.draft = open_draft(folder, state.target)
    except CheckpointError as error:
        raise pytest.UsageError(f"--checkpoint={given}: {error}") from error
    if state.target is not None and "target" not in state.draft.head_source:
        state.target = None  # the draft has an lm_head of its own
    return [name_of(folder, state.target)]


def check_options(config: pytest.Config) -> None:
    """Where the certificate goes and what signs it, before anything runs. Raises UsageError."""
    state = config.stash.setdefault(_STATE, _State())
    state.asked = any(config.getoption(name) for name in ("--head", "--checkpoint", "--certificate"))
    config.pluginmanager.register(state.outcomes, "argmax-parity-outcomes")
    key, name = config.getoption("--certificate-key"), config.getoption("--certificate")
    if key is not None and name is None:
        raise pytest.UsageError(f"--certificate-key={key}: it goes with --certificate=OUT.json")
    if name is None or hasattr(config, "workerinput"):
        return
    here = Path(config.invocation_params.dir)
    state.certificate = (here / name).absolute()
    _check_writable(name, state.certificate)
    if key is not None:
        try:
            state.signer = envelope.load_signer(here / key)
        except envelope.KeyUnusable as error:
            raise pytest.UsageError(f"--certificate-key={key}: {error}") from error
    if state.draft is not None:
        try:
            state.stamps = {file: _stamp(file) for file in state.draft.files}
            state.checkpoint_subjects = of_checkpoint(state.draft)
        except OSError as error:
            raise pytest.UsageError(f"--checkpoint={state.draft.folder}: it cannot be read ({error})") from error


def _check_writable(name: str, file: Path) -> None:
    if file.suffix != ".json":
        raise pytest.UsageError(f"--certificate={name}: give a file whose name ends in .json; its summary ends in .md")
    if file.is_dir():
        raise pytest.UsageError(f"--certificate={name}: it is a folder; give a file in it")
    if not file.parent.is_dir():
        raise pytest.UsageError(f"--certificate={name}: there is no folder {file.parent}; make it first")
    try:
        with tempfile.NamedTemporaryFile(dir=file.parent, prefix=f".{file.name}."):
            pass
        for place in (file, file.with_suffix(".md")):
            if place.exists() and not os.access(place, os.W_OK):
                raise PermissionError(f"{place.name} may not be overwritten")
    except OSError as error:
        raise pytest.UsageError(f"--certificate={name}: it cannot be written ({error.strerror or error})") from error


def _stamp(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_size, status.st_mtime_ns


# -- during the run ----------------------------------------------------------------------------------


def remember_run(
    config: pytest.Config,
    ranks: Ranks,
    facts: dict[str, Any],
    paths: tuple[str, ...],
    tp_sizes: tuple[int, ...],
    heads: dict[str, HeadFacts],
) -> None:
    """What the verdicts' scope is, and where paths and heads were loaded from, while ranks are there to be asked."""
    state = config.stash.setdefault(_STATE, _State())
    profile = getattr(config.option, "hypothesis_profile", None) or settings.get_current_profile_name()
    state.setting = Setting(ranks.backend.name, str(facts["device"]), tp_sizes, profile)
    state.facts, state.paths, state.heads = facts, paths, heads
    if state.certificate is None:
        return
    for path in paths:
        told = ranks.facts(Spec(loading.qualified(path), tp_sizes[0]))
        state.sources[path] = _with_package(loading.qualified(path), told.get("source"))
    for name, head in heads.items():
        state.sources[name] = _with_package(name, head.source)


def _with_package(name: str, source: dict[str, Any] | None) -> dict[str, Any]:
    """What the ranks said of a file, and the installed package it belongs to, by name; nothing is imported."""
    found = dict(source or {})
    top = name.rpartition(":")[0].split(".")[0]
    if top and not name.rpartition(":")[0].endswith(".py") and "/" not in top:
        for package in metadata.packages_distributions().get(top, [])[:1]:
            found |= {"package": package, "version": metadata.version(package)}
    return found


# -- the end of the run ------------------------------------------------------------------------------


def finish(session: pytest.Session, parts: list[dict[str, Any]]) -> None:
    """Decide, write the certificate and the summaries; an asked for certificate that is no pass makes the run red."""
    config = session.config
    state = config.stash.get(_STATE, None)
    if state is None or state.setting is None or hasattr(config, "workerinput"):
        return
    if not state.asked and state.setting.profile not in verdict.CERTIFYING_PROFILES:
        return
    state.verdicts = _verdicts(state, parts, _left_out(session, state))
    state.lines = readable.lines(state.verdicts, _relative(state.certificate) if state.certificate else None)
    word = verdict.overall(state.verdicts)
    step_summary = os.environ.get("GITHUB_STEP_SUMMARY")
    try:
        text = readable.markdown(state.verdicts, str(state.certificate or "none"), verdict.RESULTS[word])
        if state.certificate is not None:
            _write(state, config, parts)
            state.certificate.with_suffix(".md").write_text(text, encoding="utf-8")
            signed = ", signed" if state.signer is not None else ""
            state.lines.append(f"certificate: {_relative(state.certificate)} ({verdict.RESULTS[word]}{signed})")
        if step_summary:
            readable.append_step_summary(Path(step_summary), text)
    except OSError as error:
        state.lines.append(f"the certificate could not be written: {error}")
        session.exitstatus = session.exitstatus or 1
    if state.certificate is not None and word in (Word.REFUTED, Word.UNKNOWN) and int(session.exitstatus) == 0:
        session.exitstatus = 1


def lines(config: pytest.Config) -> list[str]:
    """The verdicts for the terminal."""
    state = config.stash.get(_STATE, None)
    return [] if state is None else state.lines


def shown(name: str) -> str:
    """A head's name as verdicts say it: of a checkpoint its folder's last part."""
    from refimpl.heads import CHECKPOINT

    if not name.startswith(CHECKPOINT):
        return name
    from fixtures.checkpoints.names import places_in

    return CHECKPOINT + places_in(name)[0].name


def _left_out(session: pytest.Session, state: _State) -> list[str]:
    """Why the run as a whole is less than all properties: a selection, or an early end."""
    config, found = session.config, []
    here = Path(config.invocation_params.dir)
    places = {(here / argument.split("::")[0]).resolve() for argument in config.args}
    if not any(place == _PROPERTIES or place in _PROPERTIES.parents for place in places):
        found.append(f"only a part of the properties was asked for: {', '.join(config.args)}")
    for name, flag in _SELECTIONS.items():
        value = getattr(config.option, name, None)
        if value:
            found.append(f"{flag} left some properties out" + (f": {value}" if isinstance(value, str) else ""))
    missing = session.testscollected - len(state.outcomes.ended)
    if session.testscollected and missing > 0:
        found.append(f"{missing} of {session.testscollected} tests did not run")
    if int(session.exitstatus) not in (0, 1):
        found.append(f"the run ended early, with exit status {int(session.exitstatus)}")
    return found


def _verdicts(state: _State, parts: list[dict[str, Any]], left_out: list[str]) -> list[Verdict]:
    assert state.setting is not None
    ledger = Ledger.merged(part["evidence"] for part in parts)
    pairs: list[tuple[str, str | None]] = []
    for name, facts in state.heads.items():
        pairs += [(path, name) for path in ((OWN,) if facts.own_tokens else state.paths)]
    found = []
    for path, head in pairs or [(path, None) for path in state.paths]:
        problems = left_out + _problems(state, ledger, path, head)
        facts_of_head = state.heads.get(head or "")
        has_table = facts_of_head is None or facts_of_head.d2t is not None
        one = verdict.decide(
            _conditional_ties(ledger, path, head),
            path,
            head,
            state.setting,
            problems=problems,
            has_table=has_table,
            given_logits=facts_of_head is not None and not facts_of_head.starts_from_hidden_states,
        )
        notes = [str(note) for note in facts_of_head.figures.get("notes", [])] if facts_of_head else []
        if facts_of_head is not None and facts_of_head.figures.get("masks"):
            notes.append("this head masks or suppresses ids, so it can give rows that are all -inf")
        found.append(replace(one, head=None if head is None else shown(head), notes=(*one.notes, *notes)))
    return found


def _conditional_ties(ledger: Ledger, path: str, head: str | None) -> Ledger:
    """Once the smallest tie has shown a head's table to decide ties, other wrong ties of the pair are of that kind."""
    kind = Kind.WRONG_TIE.value
    own = [entry for entry in ledger.of((path, head), "O5") if entry.condition and entry.kind == kind]
    own.sort(key=lambda entry: entry.scope.startswith("known: "))  # the smallest tie says more than those met by chance
    if head is None or not own:
        return ledger

    def decided_by_table(entry: Evidence) -> bool:
        ours = (entry.path, entry.head) == (path, head) and entry.status is Status.REFUTED
        return ours and (entry.kind == kind or (entry.obligation == "O5" and entry.scope.startswith("known: ")))

    condition = own[0].condition
    return Ledger(replace(entry, condition=condition) if decided_by_table(entry) else entry for entry in ledger.entries)


def _problems(state: _State, ledger: Ledger, path: str, head: str | None) -> list[str]:
    """Why the run shows less of a pair than the ledger says: tests that broke outside of a case."""
    told = {entry.source for entry in ledger.entries if entry.status in (Status.REFUTED, Status.UNKNOWN)}
    found = []
    others = [shown(name) for name in state.heads if name != head]
    for test in dict.fromkeys(state.outcomes.failed):
        inside = test.partition("[")[2]
        # A head's name stands first; it may begin or end as another's does.
        own = head is not None and inside.startswith(f"{shown(head)}-")
        of_another = not own and any(inside.startswith(f"{other}-") for other in others)
        of_path = f"{path}-tp" in inside or not any(f"{other}-tp" in inside for other in (*state.paths, OWN))
        if test not in told and of_path and not of_another:
            found.append(f"{test} failed outside of a case")
    return found


def _write(state: _State, config: pytest.Config, parts: list[dict[str, Any]]) -> None:
    assert state.certificate is not None
    for file, stamp in state.stamps.items():
        if _stamp(file) != stamp:
            raise OSError(f"{file} was changed while the run read it")
    about = list(state.checkpoint_subjects)
    for path in state.paths:
        about += of_source("path", path, state.sources.get(path))
    for name in state.heads:
        if state.draft is None or shown(name) == name:
            about += of_source("head", name, state.sources.get(name))
    outcomes = certificate.Outcomes(*map(tuple, (state.outcomes.passed, state.outcomes.warned, state.outcomes.failed)))
    document: Any = certificate.statement(state.verdicts, about, outcomes, _configuration(state, config, parts))
    if state.signer is not None:
        document = envelope.sign(document, state.signer)
    partial = state.certificate.with_name(f".{state.certificate.name}.partial-{os.getpid()}")
    try:
        partial.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        partial.replace(state.certificate)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


def _configuration(state: _State, config: pytest.Config, parts: list[dict[str, Any]]) -> dict[str, Any]:
    assert state.setting is not None
    counts = {
        f"{path}, tp {tp_size}": dict(sorted(numbers.items()))
        for (path, tp_size), numbers in summary.merge(parts).items()
    }
    from_heads = {
        f"{shown(head)}, {path}, tp {tp_size}": {
            "hidden states": line.hidden["rows"],
            "given logits": line.given["rows"],
        }
        for (head, path, tp_size), line in merge_heads(parts).items()
    }
    dtypes = sorted({dtype for part in parts for entry in part["evidence"] for dtype in entry["dtypes"]})
    found: dict[str, Any] = {
        "run": {
            "backend": state.setting.backend,
            "device": state.setting.device,
            "tp_sizes": list(state.setting.tp_sizes),
            "dtypes": dtypes,
            "paths": list(state.paths),
            "profile": state.setting.profile,
        },
        "versions": {
            "python": platform.python_version(),
            "platform": platform.platform(),
            "nccl": state.facts.get("nccl"),
            **{name: metadata.version(name) for name in _PACKAGES},
        },
        "seeds": {
            "hypothesis_seed": getattr(config.option, "hypothesis_seed", None),
            "meaning": "None: drawn anew in each run; the counts are then those of this run",
        },
        "counts": {"rows and cases": counts, "heads": from_heads},
        "minimum": {
            "rows": verdict.MINIMUM_ROWS,
            "rows from hidden states": verdict.MINIMUM_ROWS_FROM_HIDDEN_STATES,
        },
        "heads": {shown(name): head.figures for name, head in state.heads.items()},
    }
    if state.draft is not None:
        target = None if state.target is None else str(state.target)
        found["checkpoint"] = {"folder": str(state.draft.folder), "target": target, "layout": state.draft.layout}
    plain: dict[str, Any] = json.loads(json.dumps(found, default=str))
    return plain


def _relative(file: Path) -> str:
    try:
        return str(file.relative_to(Path.cwd()))
    except ValueError:
        return str(file)
