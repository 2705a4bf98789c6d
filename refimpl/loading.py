"""Names of code to objects: ``name``, ``package.module:name`` or ``file.py:name``.

Only executors load what a user names; the driver never imports code under test.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from refimpl import places

REFERENCE = "full_gather"


def _paths_in(folder: str) -> tuple[str, ...]:
    """Every file of a folder that defines a path of its own name; nothing is imported to find out."""
    files = sorted((Path(__file__).parent / folder).glob("*.py"))
    names = [
        file.stem
        for file in files
        if re.search(rf"^def {file.stem}\(\s*local_logits\b", file.read_text(), re.MULTILINE)
    ]
    return tuple(name for name in names if name != REFERENCE)


SHIPPED_PATHS = _paths_in("paths")
PEER_PATHS = _paths_in("paths/peers")  # other engines' algorithms, run by name or by the group word only
TOPK_PATHS = _paths_in("topk")  # of another contract, refimpl.topk.contract
GROUPS = {"own": SHIPPED_PATHS, "peers": PEER_PATHS}


class LoadError(Exception):
    """One sentence: which name, what is wrong, what to do."""


def qualified(name: str) -> str:
    """A shipped path's short name in full; any other name as it is."""
    if name in PEER_PATHS:
        return f"refimpl.paths.peers.{name}:{name}"
    if name in TOPK_PATHS:
        return f"refimpl.topk.{name}:{name}"
    return f"refimpl.paths.{name}:{name}" if name in (*SHIPPED_PATHS, REFERENCE) else name


def expand(names: Iterable[str]) -> tuple[str, ...]:
    """Names of paths with the group words ``own`` and ``peers`` replaced by their members, each name once."""
    return tuple(dict.fromkeys(path for name in names for path in GROUPS.get(name, (name,))))


def check_form(name: str, shipped: tuple[str, ...] = (*SHIPPED_PATHS, *PEER_PATHS)) -> str | None:
    """What is wrong with the form of a name, without importing anything. ``shipped``: the choices to tell of."""
    if name in (*SHIPPED_PATHS, *PEER_PATHS, *TOPK_PATHS, REFERENCE):
        return None
    where, colon, attribute = name.rpartition(":")
    if not colon or not where or not attribute:
        if where.endswith(".py") or name.endswith(".py"):
            return f"{name!r} names no path in the file; give it as {name.rstrip(':')}:name"
        return f"{name!r} is neither package.module:name nor file.py:name nor one of {', '.join(shipped)}"
    if where.endswith(".py") and not places.is_file(where):
        return f"{name!r} names a file that does not exist: {Path(where).absolute()}"
    return None


def check_argmax_path(name: str) -> str | None:
    """What is wrong with a name as that of an argmax path, without importing anything."""
    if name in TOPK_PATHS:
        return f"it is a top-k path, of another contract; give it as --topk-path={name}"
    return check_form(name)


def check_topk_path(name: str) -> str | None:
    """The same of a top-k path."""
    if name in (*SHIPPED_PATHS, *PEER_PATHS, REFERENCE):
        return f"it is an argmax path, of another contract; give it as --path={name}"
    return check_form(name, TOPK_PATHS)


def load(name: str) -> Any:
    """Import what a name says. Raises LoadError."""
    wrong = check_form(name)
    if wrong:
        raise LoadError(wrong)
    where, _, attribute = qualified(name).rpartition(":")
    try:
        module = load_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except LoadError:
        raise
    except BaseException as error:  # whatever a user's module does while it is imported, SystemExit too
        is_absent = isinstance(error, ModuleNotFoundError) and not where.endswith(".py")
        advice = "check that it is installed or on PYTHONPATH" if is_absent else f"mend {where}"
        if is_absent and "/" in where:
            advice = "give a module as package.module:name, or a file as file.py:name"
        elif "process group" in str(error):
            advice += "; a path is imported when the process groups are open, and is given its group at each call"
        raise LoadError(f"{name!r} cannot be imported: {type(error).__name__}: {error}; {advice}") from error
    found: Any = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise LoadError(
                f"{name!r} cannot be found: {where} has no attribute {attribute!r}; give a name that it defines"
            ) from None
    return found


def load_path(name: str) -> Any:
    """A callable path. Raises LoadError."""
    path = load(name)
    if not callable(path):
        raise LoadError(
            f"{name!r} is of type {type(path).__name__}; a path is a callable(local_logits, shard, group, d2t)"
        )
    return path


def misfit(path: Any) -> str | None:
    """Why a callable cannot be called as an argmax path; None also where only a call will show."""
    try:
        taken = inspect.signature(path)
    except (TypeError, ValueError):  # written in C
        return None
    try:
        taken.bind("local_logits", "shard", "group", "d2t")
    except TypeError as error:
        return (
            f"its signature is {taken}, and a path is called as path(local_logits, shard, group, d2t): {error}; "
            "give it these four positional parameters"
        )
    return None


def load_file(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"argmax_parity_user_{file.stem}", file.absolute())
    if spec is None or spec.loader is None:
        raise LoadError(f"{str(file)!r} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    # A script finds what lies beside it, as it would when run.
    sys.path.insert(0, str(file.absolute().parent))
    spec.loader.exec_module(module)
    return module
