"""The suite's options of pytest: what they are, and what is wrong with a value, in one sentence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from refimpl import certifying, engines, heads, known_divergences, loading
from refimpl.case import MOST_RANKS
from refimpl.head_case import HeadRef
from refimpl.profiles import PROFILES, WEIGHT_BYTES
from refimpl.ranks.launch import Launch
from refimpl.ranks.limits import Limits
from refimpl.ranks.runtime import Ranks
from refimpl.run_state import RECORDED, RunOptions

if TYPE_CHECKING:
    from fixtures.recorded import Recorded

FILE_OPTIONS = (
    "--logits",
    "--checkpoint",
    "--target-checkpoint",
    "--certificate",
    "--certificate-key",
    "--known-divergences",
)


# What stands in them is one thing; --path, --head and --topk-path may be given several times.
SINGLE_OPTIONS = (
    *FILE_OPTIONS,
    "--tp",
    "--backend",
    "--engine",
    "--rank-timeout",
    "--setup-timeout",
    "--hypothesis-profile",
)


def add_options(parser: pytest.Parser) -> None:
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
        metavar="SECONDS",
        help=f"how long a case may take on the ranks before it is a hang (default: {Limits.case:.0f})",
    )
    group.addoption(
        "--setup-timeout",
        metavar="SECONDS",
        help=f"how long the import and the setup of a path may take (default: {Limits.setup:.0f})",
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


def parse_tp(text: str | None, launch: Launch) -> tuple[int, ...]:
    if text is None:
        return (launch.world_size if launch.torchrun else 2,)
    if not re.fullmatch(r" *[0-9]{1,9} *(, *[0-9]{1,9} *)*", text):
        raise pytest.UsageError(f"--tp={text}: give whole numbers separated by commas, such as --tp=2,4")
    sizes = tuple(sorted({int(word) for word in text.split(",")}))
    if sizes[0] < 1 or sizes[-1] > MOST_RANKS:
        raise pytest.UsageError(f"--tp={text}: a tp_size is a number from 1 to {MOST_RANKS}")
    if launch.torchrun and sizes[-1] > launch.world_size:
        raise pytest.UsageError(
            f"--tp={text}: tp_size {sizes[-1]} is over WORLD_SIZE {launch.world_size}; "
            f"start torchrun with --nproc-per-node {sizes[-1]} or leave --tp out"
        )
    return sizes


def _limits(config: pytest.Config) -> Limits:
    try:
        return Limits.of(config.getoption("--rank-timeout"), config.getoption("--setup-timeout"))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


def _heads(config: pytest.Config, profile: str) -> tuple[HeadRef, ...]:
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


def refuse_repeated(args: Sequence[str]) -> None:
    """The last of two values would count, and nothing be said of the first."""
    for option in SINGLE_OPTIONS:
        values = {arg for arg in args if arg.startswith(f"{option}=")}
        if len(values) > 1:
            raise pytest.UsageError(f"{option} is given {len(values)} times with different values; give it once")


def parse_options(config: pytest.Config) -> RunOptions:
    """The command line, checked. Raises UsageError."""
    launch = Launch.from_environment()
    if launch.max_restarts:
        raise pytest.UsageError("torchrun's --max-restarts would run a red suite again; leave it out")
    if launch.torchrun and getattr(config.option, "numprocesses", None):
        raise pytest.UsageError("-n under torchrun would start ranks of ranks; use -n without torchrun, with --tp")
    refuse_empty(config)
    refuse_repeated([str(arg) for arg in config.invocation_params.args])
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
    run = RunOptions(launch, paths, parse_tp(config.getoption("--tp"), launch), _heads(config, profile or "dev"))
    certifying.check_options(config)
    run.engine = config.getoption("--engine")
    wrong = None if run.engine is None else engines.check_name(run.engine)
    if wrong:
        raise pytest.UsageError(f"--engine={run.engine}: {wrong}")
    limits = _limits(config)
    run.ranks = Ranks(launch, backend, limits.case, run.engine, limits.setup)
    known = config.getoption("--known-divergences")
    if known:
        run.known = known_divergences.read(known, config.invocation_params.dir)
    logits = config.getoption("--logits")
    if logits is not None:
        config.stash[RECORDED] = _load_logits(config, logits)
    return run
