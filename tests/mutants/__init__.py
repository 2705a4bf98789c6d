"""Seeded bugs: plausible paths with exactly one bug each, which show that the suite can see.

One file a family, one function a mutant; the first line of its docstring says the bug. `parts` holds the right building
blocks. A family is imported only when asked for, since a rank that runs one mutant needs no other.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from refimpl.verdict.kinds import Kind


@dataclass(frozen=True)
class Mutant:
    """One wrong path and what a suite that can see must say of it.

    ``kinds``: the suite must report one of these. ``also``: what further cases may show of the same bug, where it
    spreads (an id rounded past the end of a table raises). A kind outside both is a wrong diagnosis.
    ``tp_sizes``: the smallest at which it is visible, a tp_size of one, where nothing is reduced, aside.
    ``small``: True if a batch of at most 2 and a vocabulary of at most 8 can show it, otherwise what it needs.
    ``dtypes``: those in which it can show. ``needs_subgroup``: only in a group that is a proper subgroup of the world.
    """

    name: str
    function: Callable[..., Any]
    kinds: frozenset[Kind]
    seen: str
    tp_sizes: tuple[int, ...]
    small: bool | str
    note: str
    also: frozenset[Kind] = frozenset()
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16")
    needs_table: bool = False
    needs_subgroup: bool = False

    @property
    def family(self) -> str:
        return self.function.__module__.rpartition(".")[2]

    @property
    def spec(self) -> str:
        """How ``--path`` names it."""
        return f"{__name__}.{self.family}:{self.name}"


_registry: dict[str, Mutant] = {}


def mutant(
    *,
    kinds: Iterable[Kind],
    seen: str,
    tp_sizes: tuple[int, ...] = (2,),
    small: bool | str = True,
    also: Iterable[Kind] = (),
    **needs: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a path as a mutant and return it unchanged."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        entry = Mutant(
            name=function.__name__,
            function=function,
            kinds=frozenset(kinds),
            seen=seen,
            tp_sizes=tp_sizes,
            small=small,
            note=" ".join((function.__doc__ or "").split()),
            also=frozenset(also) - frozenset(kinds),
            **needs,
        )
        _registry[entry.spec] = entry
        return function

    return register


def all_mutants() -> tuple[Mutant, ...]:
    """Every mutant, by family in alphabetical order, inside a family as written."""
    families = sorted(module.name for module in pkgutil.iter_modules(__path__))
    for family in families:
        importlib.import_module(f"{__name__}.{family}")
    known = [entry for entry in _registry.values() if entry.family in families]
    return tuple(sorted(known, key=lambda entry: entry.family))
