"""Seeded bugs in heads: an engine's two answers, of which the local one has exactly one bug.

One file a family, one class a mutant; the first line of its docstring says the bug. `right` is the engine without it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from refimpl.head import Head
from refimpl.verdict.kinds import Kind

FAMILIES = ("logits", "ids")


@dataclass(frozen=True)
class HeadMutant:
    """One wrong head. ``kinds``: the suite must report one of these. ``why``: part of the reason it must name."""

    name: str
    family: str
    kinds: frozenset[Kind]
    why: str | None
    seen: str
    note: str

    @property
    def spec(self) -> str:
        """How ``--head`` names it."""
        return f"{__name__}.{self.family}:{self.name}"


_registry: dict[str, HeadMutant] = {}


def mutant(*, kinds: Iterable[Kind], seen: str, why: str | None = None) -> Callable[[type[Head]], type[Head]]:
    """Register a head as a mutant and return it unchanged."""

    def register(head: type[Head]) -> type[Head]:
        family = head.__module__.rpartition(".")[2]
        note = (head.__doc__ or "").split("\n")[0]
        _registry[f"{family}:{head.__name__}"] = HeadMutant(head.__name__, family, frozenset(kinds), why, seen, note)
        return head

    return register


def all_mutants() -> tuple[HeadMutant, ...]:
    """Every mutant, by family, inside a family as written."""
    for family in FAMILIES:
        importlib.import_module(f"{__name__}.{family}")
    return tuple(sorted(_registry.values(), key=lambda entry: FAMILIES.index(entry.family)))
