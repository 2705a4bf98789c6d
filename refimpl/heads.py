"""Names of heads to heads: ``name`` (a file in fixtures/heads, or an entry point), ``package.module:name``,
``file.py:name``.

The driver only handles names. A head's file is imported by executors, as a path's is.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refimpl import loading

if TYPE_CHECKING:
    from refimpl.head import Head

ENTRY_POINTS = "argmax_parity.heads"
CHECKPOINT = "checkpoint:"  # before a folder, instead of a name
DEFAULT = "small_eagle3"
_FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "heads"


class HeadError(ValueError):
    """A head cannot be used: one sentence that names the figure, its value and what to do."""


def shipped() -> tuple[str, ...]:
    """Every file of fixtures/heads; nothing is imported to find out."""
    return tuple(sorted(file.stem for file in _FOLDER.glob("*.py") if not file.stem.startswith("_")))


def installed() -> dict[str, str]:
    """Heads that other packages bring: name to ``package.module:name``."""
    return {entry.name: entry.value for entry in metadata.entry_points(group=ENTRY_POINTS)}


def expand(names: list[str]) -> tuple[str, ...]:
    """``all`` as every shipped and installed head; every name once. Raises HeadError for a name that is none."""
    found: list[str] = []
    for name in names:
        if name.startswith(CHECKPOINT):  # a certificate would not hold the digests of its files
            folder = name.removeprefix(CHECKPOINT)
            raise HeadError(
                f"it is how reports call the head of a checkpoint; give its folder as --checkpoint={folder}"
            )
        found += [*shipped(), *installed()] if name == "all" else [spelled(name)]
    return tuple(dict.fromkeys(found))


def spelled(name: str) -> str:
    """A name as it is written in reports. Raises HeadError for one that is no head's, without importing anything."""
    if name.startswith(CHECKPOINT):
        return name
    if ":" in name:
        wrong = loading.check_form(name)
        if wrong:
            raise HeadError(wrong)
        return name
    short = name.replace("-", "_")
    if short in shipped():
        return short
    if name in installed():
        return name
    close = [known for known in shipped() if short in known or known in short]
    hint = f"the nearest are {', '.join(close[:3])}" if close else f"give one of {', '.join(shipped())}"
    raise HeadError(f"there is no head {name!r}; {hint}; or give a head of your own as file.py:name")


def reference_of(name: str) -> str:
    """A head's name as ``package.module:name`` or ``file.py:name``."""
    return f"fixtures.heads.{name}:head" if name in shipped() else installed().get(name, name)


def load(name: str) -> Head:
    """The head of a name, on an executor. Raises loading.LoadError and HeadError."""
    from refimpl.head import Head  # with torch, which the driver does without

    if name.startswith(CHECKPOINT):
        read: Any = loading.load("fixtures.checkpoints.head:load_named")
        return read(name)
    found: Any = loading.load(reference_of(name))
    if isinstance(found, type) and issubclass(found, Head):
        make: Any = found
        try:
            found = make()  # a subclass whose fields all have defaults
        except TypeError as error:
            raise HeadError(f"{name!r} is a class that cannot be called without arguments ({error})") from error
    if not isinstance(found, Head):
        raise HeadError(
            f"{name!r} is of type {type(found).__name__}; a head is a refimpl.head.Head or a subclass of it"
        )
    return found if found.name else found.changed(name=name)
