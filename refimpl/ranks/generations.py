"""Generations of ranks: fresh processes with fresh groups, started, adopted by a path, and ended.

Where ranks run on CPUs, the next generation is brought up while one is at work: its processes and groups are there, and
no code under test is, until a path is loaded into them. A path that fails, and a test that ends, then need not wait.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from refimpl.ranks.backend import Backend
from refimpl.ranks.hub import Event, Hub, Peer, wait_for
from refimpl.ranks.outcome import Died

_START_SECONDS = 120.0
_GONE_SECONDS = 10.0
_TEARDOWN_SECONDS = 5.0
# It had all the time of the generation before; one that still is not up is not worth the wait of a start.
_SPARE_SECONDS = 10.0
# Shapes of which a spare generation waits: a run asks for one or two tp_sizes in turn.
_SPARES = 2


class RanksUnavailable(Exception):
    """The ranks themselves could not do their part; whatever was asked of them is unknown."""


class PathUnusable(Exception):
    """The path could not be brought up on the ranks: ``stage`` is import or setup."""

    def __init__(self, stage: str, message: str) -> None:
        super().__init__(message)
        self.stage = stage


@dataclass(frozen=True)
class Shape:
    """What processes and groups a generation has, whatever path is loaded into it."""

    tp_size: int
    bystanders: int = 0
    debug: bool = False

    @property
    def world_size(self) -> int:
        return self.tp_size + self.bystanders


@dataclass(frozen=True)
class Spec:
    """What a generation is started for."""

    path: str
    tp_size: int
    bystanders: int = 0
    debug: bool = False

    @property
    def world_size(self) -> int:
        return self.shape.world_size

    @property
    def shape(self) -> Shape:
        return Shape(self.tp_size, self.bystanders, self.debug)


@dataclass(eq=False)
class Generation:
    """``opened``, ``imported``, ``ready``: ranks whose groups are open, that have the path, that have set it up.

    ``ready`` holds what they said of it, ``stopped`` what the path's teardown raised, in words.
    """

    number: int
    shape: Shape
    supervisors: dict[int, Peer]  # by world rank
    peers: dict[int, Peer] = field(default_factory=dict)
    opened: set[int] = field(default_factory=set)
    imported: set[int] = field(default_factory=set)
    ready: dict[int, dict[str, Any]] = field(default_factory=dict)
    stopped: dict[int, str | None] = field(default_factory=dict)
    problems: dict[int, tuple[str, str]] = field(default_factory=dict)
    died: dict[int, Died] = field(default_factory=dict)

    @property
    def facts(self) -> dict[str, Any]:
        """What the first rank of the group said when it was ready."""
        told = self.ready[self.shape.bystanders]
        return {name: told[name] for name in told if name != "event"}

    @property
    def is_broken(self) -> bool:
        return bool(self.problems or self.died)


class Generations:
    """All generations of one run, by what they were started for."""

    def __init__(
        self,
        hub: Hub,
        supervisors: list[Peer],
        backend: Backend,
        one_host: bool,
        store: Callable[[int], str],
        setup_limit: float,
    ) -> None:
        """``store``: the address at which the ranks of a numbered generation meet. ``setup_limit``: in seconds."""
        self._hub = hub
        self._supervisors = supervisors
        self._backend = backend
        self._one_host = one_host
        self._store = store
        self._setup_limit = setup_limit
        self._adopted: dict[Spec, Generation] = {}
        self._spares: dict[Shape, Generation] = {}
        self._by_number: dict[int, Generation] = {}
        self._last_number = 0
        self.lost: str | None = None  # why no case can run any more
        self.adopted = 0  # how many were, since the run began
        self.complaints: list[str] = []  # about teardowns

    def check(self) -> None:
        """Raises RanksUnavailable once a supervisor is gone."""
        if self.lost:
            raise RanksUnavailable(self.lost)

    def get(self, spec: Spec) -> Generation:
        """The live generation of a spec, adopted or started if need be. Raises RanksUnavailable, PathUnusable."""
        self.check()
        if spec in self._adopted:
            return self._adopted[spec]
        spare = self._spare(spec.shape)
        if spare is not None:
            try:
                return self._adopt(spec, spare)
            except (RanksUnavailable, PathUnusable):
                self.check()
                if not spare.died:
                    raise
                # It may have died before the path came near it, and the news be late: the path is loaded once more.
        return self._adopt(spec, self._launch(spec.shape))

    def _adopt(self, spec: Spec, generation: Generation) -> Generation:
        self._adopted[spec] = generation
        try:
            self._load(generation, spec.path)
        except BaseException:
            with contextlib.suppress(RanksUnavailable):
                self.end(generation)
            raise
        self.adopted += 1
        self._keep_spare(spec.shape)
        return generation

    def end(self, generation: Generation) -> None:
        """Kill it and wait until it is gone. Raises RanksUnavailable where it does not go."""
        waiting = {
            peer
            for peer in set(generation.supervisors.values())
            if peer.send({"do": "kill", "generation": generation.number})
        }

        def take(event: Event) -> None:
            if event.head.get("event") in ("gone", "hung up"):
                waiting.discard(event.peer)
            self.note(event)

        ended = wait_for(self._hub, _GONE_SECONDS, lambda: not waiting, take)
        for peer in generation.peers.values():
            self._hub.drop(peer)
        self._adopted = {spec: other for spec, other in self._adopted.items() if other is not generation}
        self._by_number.pop(generation.number, None)
        if not ended:
            raise RanksUnavailable(f"ranks of generation {generation.number} did not end within {_GONE_SECONDS:.0f} s")

    def retire(self, spec: Spec | None = None) -> None:
        """End all adopted generations, or that of one spec, after the path's teardown."""
        for known, generation in [(k, g) for k, g in self._adopted.items() if spec is None or k == spec]:
            if not generation.is_broken and generation.facts["teardown"]:
                self._tear_down(generation, known.path)
            self.end(generation)

    def _tear_down(self, generation: Generation, path: str) -> None:
        for peer in generation.peers.values():
            peer.send({"do": "stop"})
        size = generation.shape.world_size

        def done() -> bool:
            return bool(generation.died or self.lost) or len(generation.stopped) == size

        wait_for(self._hub, _TEARDOWN_SECONDS, done, self.note)
        said = [words for words in generation.stopped.values() if words is not None]
        if generation.died:
            said.append(f"teardown() ended rank {min(generation.died)} by {generation.died[min(generation.died)].how}")
        elif len(generation.stopped) < size and not self.lost:
            said.append(f"teardown() had not returned after {_TEARDOWN_SECONDS:.0f} s")
        self.complaints += [f"{path}: {words}" for words in dict.fromkeys(said)]

    def forget(self) -> None:
        """When the supervisors have ended them all, for good."""
        self.lost = self.lost or "the ranks were closed"
        self._adopted.clear()
        self._spares.clear()
        self._by_number.clear()

    def note(self, event: Event) -> None:
        """Book-keeping that is right at any time: who connected, who got how far, who died."""
        head, hello = event.head, event.peer.hello
        what = head.get("event")
        if what == "hung up" and hello.get("role") == "supervisor":
            self.lost = f"the supervisor of launched process {hello['index']} ended"
            return
        generation = self._by_number.get(head.get("generation", hello.get("generation", -1)))
        if generation is None:
            return
        if what == "died":
            generation.died[head["rank"]] = Died(head["signal"], head["status"], head["tail"])
        elif hello.get("role") != "executor":
            return
        elif what == "hello":
            generation.peers[hello["rank"]] = event.peer
        elif what == "open":
            generation.opened.add(hello["rank"])
        elif what == "imported":
            generation.imported.add(hello["rank"])
        elif what == "stopped":
            generation.stopped[hello["rank"]] = head["error"]
        elif what == "ready":
            generation.ready[hello["rank"]] = head
        elif what == "not ready":
            generation.problems[hello["rank"]] = (head["stage"], head["error"])

    # -- inside -------------------------------------------------------------------------------------

    def _spare(self, shape: Shape) -> Generation | None:
        """One that waits and is sound. What has become of it in the meantime is nothing that a case could be about."""
        spare = self._spares.pop(shape, None)
        if spare is None:
            return None

        def settled() -> bool:
            return spare.is_broken or bool(self.lost) or len(spare.opened) == shape.world_size

        if wait_for(self._hub, _SPARE_SECONDS, settled, self.note) and not spare.is_broken:
            return spare
        self.end(spare)
        return None

    def _keep_spare(self, shape: Shape) -> None:
        if self._backend.device_type != "cpu" or shape.bystanders or shape.debug:
            return  # a GPU's memory and a communicator are not held for later
        if shape not in self._spares:
            while len(self._spares) >= _SPARES:
                self.end(self._spares.pop(next(iter(self._spares))))
            self._spares[shape] = self._launch(shape)

    def _launch(self, shape: Shape) -> Generation:
        """Have the supervisors start the processes; they open their groups by themselves."""
        number = self._last_number = self._last_number + 1
        placed = {rank: self._supervisors[rank % len(self._supervisors)] for rank in range(shape.world_size)}
        generation = self._by_number[number] = Generation(number, shape, placed)
        local: dict[str, int] = {}
        orders: dict[Peer, list[dict[str, Any]]] = {}
        for rank, peer in placed.items():
            host = peer.hello["host"]
            environment = self._backend.environment(rank, self._one_host)
            if shape.debug:
                environment["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
            orders.setdefault(peer, []).append(
                {
                    "rank": rank,
                    "local_rank": local.get(host, 0),
                    "environment": environment,
                    "seed": secrets.randbits(31),
                }
            )
            local[host] = local.get(host, 0) + 1
        shared = {
            "generation": number,
            "world_size": shape.world_size,
            "bystanders": shape.bystanders,
            "backend": self._backend.name,
            "store": self._store(number),
        }
        for peer, ranks in orders.items():
            peer.send({"do": "start", "spec": shared, "ranks": ranks})
        return generation

    def _load(self, generation: Generation, path: str) -> None:
        """Wait for the groups, then for the path in every rank."""
        self._wait(generation, generation.opened)
        for peer in generation.peers.values():
            peer.send({"do": "load", "path": path})
        self._wait(generation, generation.ready, path)

    def _wait(self, generation: Generation, arrived: Any, path: str | None = None) -> None:
        size = generation.shape.world_size

        def done() -> bool:
            return generation.is_broken or bool(self.lost) or len(arrived) == size

        limit = _START_SECONDS if path is None else self._setup_limit
        if not wait_for(self._hub, limit, done, self.note):
            missing = sorted(set(range(size)) - set(arrived))
            late = f"after {limit:g} s; --setup-timeout gives it longer"
            if path is not None and missing[0] in generation.imported:
                raise PathUnusable("setup", f"its setup() had not returned on rank {missing[0]} {late}")
            if path is not None:
                raise PathUnusable("import", f"rank {missing[0]} was still importing it {late}")
            raise RanksUnavailable(f"rank {missing} was not ready within {_START_SECONDS:.0f} s")
        self.check()
        if generation.problems:
            stage, message = generation.problems[min(generation.problems)]
            if stage == "group":
                raise RanksUnavailable(f"the process group could not be opened: {message}")
            raise PathUnusable(stage, message)
        if generation.died:
            rank, died = min(generation.died.items())
            if path is None:
                raise RanksUnavailable(f"rank {rank} ended by {died.how} before its group was open\n{died.tail}")
            if rank in generation.imported:
                raise PathUnusable("setup", f"rank {rank} ended by {died.how} in the setup() of {path!r}")
            raise PathUnusable("import", f"rank {rank} ended by {died.how} while {path!r} was loaded")
