"""What a pytest run of the suite keeps: what it is about, and what its hooks and fixtures hand to each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from refimpl.engines import EngineFacts
from refimpl.head_case import HeadRef
from refimpl.known_divergences import KnownDivergences
from refimpl.ranks.head_runtime import HeadFacts
from refimpl.ranks.launch import Launch
from refimpl.ranks.runtime import Ranks
from refimpl.session import Session
from refimpl.verdict.reduce import Counterexample

if TYPE_CHECKING:
    from fixtures.recorded import Recorded


@dataclass
class RunOptions:
    """What the command line asked for, and the ranks it is asked of."""

    launch: Launch
    paths: tuple[str, ...]
    tp_sizes: tuple[int, ...]
    heads: tuple[HeadRef, ...] = ()
    engine: str | None = None
    known: KnownDivergences = field(default_factory=KnownDivergences)
    ranks: Ranks | None = None
    header: str = ""
    published: bool = False


SESSION = pytest.StashKey[Session]()
RECORDED: pytest.StashKey[Recorded] = pytest.StashKey()  # the rows of --logits, where it is given
HEADS = pytest.StashKey[dict[str, HeadFacts]]()  # what the ranks told of each head of --head
KNOWN = pytest.StashKey[list[tuple[Counterexample, str]]]()  # witnesses of divergences that a head states itself
ENGINE = pytest.StashKey[EngineFacts]()  # of --engine, where it is given
# By test, identities of divergences that the adopter's file says are known, with the reason of each.
KNOWN_IDENTITIES = pytest.StashKey[dict[str, dict[str, str]]]()
SUMMARIES = pytest.StashKey[list[dict[str, Any]]]()
NOTHING_COMPARED = pytest.StashKey[bool]()  # and for that alone the run is red
RUN = pytest.StashKey[RunOptions]()
