"""Automatic mutation of the shipped local paths: ``python -m tests.mutation [PATH ...] [--list]``.

Each mutant is a path's source with one node of its syntax tree changed. It is run as an adopter's path would be, by the
properties, on real ranks; whatever makes a run red kills it, and so does a refusal where the path gives none.
Survivors are printed with their changed line; the
explained ones stand in ``tests/mutation_survivors.json``, so that a new one is noticed (exit status 1).

A small tool rather than a mutation framework: those change a package in place and run a test command per mutant, which
here would mean starting ranks and importing torch some hundred times.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from hypothesis import settings

from refimpl.loading import SHIPPED_PATHS
from refimpl.profiles import PROFILES
from refimpl.ranks.generations import PathUnusable
from refimpl.ranks.journal import Journal
from refimpl.ranks.runtime import Ranks
from refimpl.session import Session, Unknown

# Before the properties are imported, which take their sizes from the profile of that moment.
settings.load_profile(next(iter(PROFILES)))

from tests.test_mutants import failures  # noqa: E402
from tests.test_path_limits import declines, probes  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
SURVIVORS = Path(__file__).with_name("mutation_survivors.json")

_SWAPPED: dict[type, list[type]] = {
    ast.Add: [ast.Sub],
    ast.Sub: [ast.Add],
    ast.Mult: [ast.Add],
    ast.FloorDiv: [ast.Mult],
    ast.LShift: [ast.RShift],
    ast.RShift: [ast.LShift],
    ast.BitAnd: [ast.BitOr],
    ast.BitOr: [ast.BitAnd],
    ast.BitXor: [ast.BitOr],
    ast.Eq: [ast.NotEq, ast.GtE],
    ast.NotEq: [ast.Eq],
    ast.Lt: [ast.LtE, ast.GtE],
    ast.LtE: [ast.Lt],
    ast.Gt: [ast.GtE, ast.LtE],
    ast.GtE: [ast.Gt],
    ast.Is: [ast.IsNot],
    ast.IsNot: [ast.Is],
}
_RENAMED = {
    "MAX": ["MIN", "SUM"],
    "argmax": ["argmin"],
    "amax": ["amin"],
    "amin": ["amax"],
    "max": ["min"],
    "start": ["end"],
    "end": ["start"],
    "num_real": ["padded_size", "num_padding"],
    "float32": ["bfloat16", "float16"],
    "int64": ["int32"],
}


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    """Every way in which this one node is changed."""
    if isinstance(node, (ast.BinOp, ast.AugAssign)):
        for other in _SWAPPED.get(type(node.op), []):
            yield _with(node, op=other())
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        for other in _SWAPPED.get(type(node.ops[0]), []):
            yield _with(node, ops=[other()])
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield _with(node, value=node.value + 1)
        if node.value:
            yield _with(node, value=0)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield _with(node, value=not node.value)
    elif isinstance(node, ast.Attribute) and node.attr in _RENAMED:
        for other in _RENAMED[node.attr]:
            yield _with(node, attr=other)
    elif isinstance(node, (ast.If, ast.IfExp)):
        yield _with(node, test=ast.UnaryOp(ast.Not(), node.test))
    elif isinstance(node, (ast.Assign, ast.Expr, ast.Raise)):
        yield ast.Pass()


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return ast.copy_location(self._new, node) if node is self._old else self.generic_visit(node)


def _annotations(tree: ast.AST) -> set[int]:
    """Every node that is part of an annotation."""
    fields = [getattr(node, name, None) for node in ast.walk(tree) for name in ("annotation", "returns")]
    return {id(part) for field in fields if isinstance(field, ast.AST) for part in ast.walk(field)}


def mutants(path: str) -> Iterator[tuple[str, str]]:
    """``(what was changed, the whole changed source)`` of one shipped path."""
    source = (ROOT / f"refimpl/paths/{path}.py").read_text()
    lines = source.splitlines()
    whole = ast.unparse(ast.parse(source))
    seen = {whole}
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    for number in range(len(list(ast.walk(ast.parse(source))))):
        tree = ast.parse(source)
        node = list(ast.walk(tree))[number]
        line = getattr(node, "lineno", 0)
        if id(node) in _annotations(tree):
            continue  # never evaluated
        if not any(function.lineno < line <= (function.end_lineno or 0) for function in functions):
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # a docstring
        for changed in list(_changes(node)):
            fresh = ast.parse(source)
            target = list(ast.walk(fresh))[number]
            text = ast.unparse(ast.fix_missing_locations(_Replace(target, changed).visit(fresh)))
            if text not in seen:
                seen.add(text)
                yield f"{lines[line - 1].strip()}  ->  {ast.unparse(changed)}", text


def _is_killed(session: Session, path: str, spec: str, tp_size: int) -> bool:
    """Whether a run of the properties would be red, or it declines where ``path`` does not, which makes no run red."""
    try:
        if any(declines(session.ranks, spec, call) is not declined for call, declined in probes(path).values()):
            return True
        return next(failures(session, spec, tp_size), None) is not None
    except (Unknown, AssertionError, PathUnusable):
        return True


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", default=SHIPPED_PATHS, metavar="PATH")
    parser.add_argument("--list", action="store_true", help="only list the mutants")
    parser.add_argument("--tp", type=int, default=3, help="tp_size the properties run at (default: 3)")
    options = parser.parse_args()
    explained: dict[str, dict[str, str]] = json.loads(SURVIVORS.read_text()) if SURVIVORS.exists() else {}
    unexplained = 0
    with (
        tempfile.TemporaryDirectory(prefix="argmax-parity-mutation-") as folder,
        Ranks(backend="gloo", limit=2.0) as ranks,
    ):
        session = Session(ranks, Journal(Path(folder) / "journal", "mutation"), reduce_seconds=0.0)
        for path in options.paths:
            killed = survived = 0
            start = time.monotonic()
            for number, (what, source) in enumerate(mutants(path)):
                if options.list:
                    print(what)
                    continue
                file = Path(folder) / f"{path}_{number}.py"
                file.write_text(source)
                if _is_killed(session, path, f"{file}:{path}", options.tp):
                    killed += 1
                    continue
                survived += 1
                reason = explained.get(path, {}).get(what)
                unexplained += reason is None
                print(f"{path}: survives: {what}\n    {reason or 'NOT EXPLAINED'}", flush=True)
            if not options.list:
                total = killed + survived
                print(
                    f"{path}: {killed} of {total} killed ({killed / total:.0%}), {time.monotonic() - start:.0f} s",
                    flush=True,
                )
        session.journal.close(0)
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
