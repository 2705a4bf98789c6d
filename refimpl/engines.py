"""Names of engines to adapters: ``vllm`` (a module in fixtures/engines), ``package.module`` or ``file.py``.

An adapter is a module with

* ``preload()``: import the engine. The fork server calls it once, so that ranks come up without paying for it; it must
  start no thread.
* ``facts()`` -> `EngineFacts`: what is installed and which options it has, told on a rank.
* ``open_group(group)``: open the engine's own tensor-parallel group; once in each new process, on every rank alike.
* ``head(case, weight, bias)`` -> a `refimpl.head.Head` with ``full_tokens`` and ``local_tokens``, built from the
  engine's own classes with the options of a case; ``full_logits`` are the logits of its lm_head in the order of their
  ids, put together by the adapter.
  Where ``facts().features`` has ``top_k``, also ``full_topk`` and ``local_topk``, both of ``(hidden_states, k, group,
  log_probs=False)``, which give values and ids.
* ``COLLECTIVES``: prefixes of dispatcher operations that count as collectives beside c10d's.
* ``RUN_AGAINST``: the releases it was run against.

The driver only handles names; the fork server and the ranks import.
"""

from __future__ import annotations

import importlib
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from refimpl import loading, places

_LOADED: dict[Path, ModuleType] = {}
_FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "engines"


class EngineUnusable(ValueError):
    """An engine cannot be used: one sentence that names it, what is wrong and what to do."""


@dataclass(frozen=True)
class EngineFacts:
    """What an adapter found installed.

    ``release``: the engine's own version. ``run_against``: releases the adapter was run against. ``features``: optional
    parts of the interface that are there, see the adapter. ``missing``: those that are not, in words.
    """

    name: str
    release: str
    run_against: tuple[str, ...]
    features: frozenset[str]
    missing: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.name} {self.release}"

    @property
    def words(self) -> str:
        """For the header of a run."""
        known = ", ".join(self.run_against)
        note = "" if self.release in self.run_against else f"; the adapter was run against {known} only"
        left_out = f"; not in this release, so not drawn: {', '.join(self.missing)}" if self.missing else ""
        return f"engine {self.title}: its own full gather against its own local reduction{note}{left_out}"

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "features": sorted(self.features)}

    @classmethod
    def from_plain(cls, told: dict[str, Any]) -> EngineFacts:
        return cls(
            told["name"],
            told["release"],
            tuple(told["run_against"]),
            frozenset(told["features"]),
            tuple(told["missing"]),
        )


def shipped() -> tuple[str, ...]:
    return tuple(sorted(file.stem for file in _FOLDER.glob("*.py") if not file.stem.startswith("_")))


def check_name(name: str) -> str | None:
    """What is wrong with a name, without importing anything."""
    if name in shipped():
        return None
    if name.endswith(".py"):
        return None if places.is_file(name) else f"{name!r} names a file that does not exist: {Path(name).absolute()}"
    if "." in name and all(part.isidentifier() for part in name.split(".")):
        return None
    return f"there is no engine {name!r}; give {', '.join(shipped())}, or an adapter as package.module or file.py"


def load(name: str) -> ModuleType:
    """An adapter, on a rank or in the fork server. Raises EngineUnusable."""
    try:
        if name in shipped():
            return importlib.import_module(f"fixtures.engines.{name}")
        if name.endswith(".py"):
            file = Path(name).absolute()
            if file not in _LOADED:
                _LOADED[file] = loading.load_file(file)
            return _LOADED[file]
        return importlib.import_module(name)
    except BaseException as error:
        raise EngineUnusable(
            f"the adapter cannot be imported: {type(error).__name__}: {error}; check the name and PYTHONPATH"
        ) from error


def preload(name: str) -> None:
    """Import adapter and engine in the fork server. What goes wrong is said by the ranks, which try again."""
    try:
        load(name).preload()
    except BaseException:
        return
