"""The driver's view of the ranks: start a generation, run a case on it, say what each rank did, replace it.

No code under test runs here. Every wait has a limit, and every wait that runs out says which rank waited where.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from refimpl import loading
from refimpl.case import Case, base_of_sliding
from refimpl.ranks import backend as backends
from refimpl.ranks.generations import Generation, Generations, RanksUnavailable, Spec
from refimpl.ranks.hub import Event, Hub, Peer, wait_for
from refimpl.ranks.launch import Launch, start_supervisor
from refimpl.ranks.limits import Limits
from refimpl.ranks.outcome import RankOutcome, Run, Stuck, from_wire, never_answers
from refimpl.ranks.wire import Frame

_SUPERVISORS_SECONDS = 150.0
_GONE_SECONDS = 10.0
# After one rank raised, refused or died, how long the others get to show whether they do so as well.
_GRACE_SECONDS = 0.1


class Ranks:
    """All ranks of a run. Use as a context manager, or call `open` and `close`."""

    def __init__(
        self,
        launch: Launch | None = None,
        backend: str = "auto",
        limit: float = Limits.case,
        engine: str | None = None,
        setup_limit: float = Limits.setup,
    ) -> None:
        """``limit``, ``setup_limit``: see `refimpl.ranks.limits`. ``engine``: a live engine that the fork servers
        import before they fork, see `refimpl.engines`."""
        self._launch = launch or Launch()
        self._engine = engine
        self._wanted_backend = backend
        self.limit = limit
        self._setup_limit = setup_limit
        self._supervisors: list[Peer] = []
        self._generations: Generations | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: str | None = None
        self._hub: Hub | None = None
        self.opened: Any = None  # the generation in which an engine has its group, see `refimpl.ranks.engine_runtime`
        self.seconds_in_runs = 0.0

    # -- opening and closing ------------------------------------------------------------------------

    def __enter__(self) -> Ranks:
        self.open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close(1 if exc[0] else 0)

    def listen(self) -> None:
        """Open the hub and tell the other launched processes where it is; cheap, and the first thing a driver does."""
        secret = secrets.token_hex(32)
        self._hub = Hub(self._launch.listening_address(), secret)
        address = {"host": self._hub.address[0], "port": self._hub.address[1], "secret": secret}
        address["run"] = secrets.token_hex(6)
        if self._engine is not None:
            address["engine"] = self._engine
        self._folder = tempfile.mkdtemp(prefix="argmax-parity-")
        self._process = start_supervisor(self._launch, address, self._folder)
        if self._launch.torchrun and self._launch.world_size > 1:
            self._launch.store().set(self._launch.store_key, json.dumps(address))

    def open(self) -> None:
        """Wait until every launched process has its supervisor. Raises RanksUnavailable, ValueError for the backend."""
        if self._hub is None:
            self.listen()
        assert self._hub is not None
        found: dict[int, Peer] = {}

        def take(event: Event) -> None:
            if event.head.get("event") == "hello" and event.head.get("role") == "supervisor":
                found[event.head["index"]] = event.peer

        wanted = self._launch.world_size

        def joined() -> bool:
            return len(found) == wanted or self._process is None or self._process.poll() is not None

        settled = wait_for(self._hub, _SUPERVISORS_SECONDS, joined, take)
        if len(found) < wanted and self._process is not None and self._process.poll() is not None:
            words = f"the supervisor of this process ended with status {self._process.returncode} before it joined"
            raise RanksUnavailable(f"{words}; what it said stands above")
        if not settled:
            missing = sorted(set(range(wanted)) - set(found))
            raise RanksUnavailable(f"launched process {missing} did not join within {_SUPERVISORS_SECONDS:.0f} s")
        self._supervisors = [found[index] for index in range(wanted)]
        hosts: dict[str, int] = {}
        for peer in self._supervisors:
            hosts[peer.hello["host"]] = hosts.get(peer.hello["host"], 0) + 1
        one_host = len(hosts) == 1
        devices = [peer.hello["cuda_devices"] for peer in self._supervisors]
        self.backend = backends.choose(self._wanted_backend, devices, max(hosts.values()))

        def store(number: int) -> str:
            if one_host:
                return f"file:{os.path.join(self._folder or '', f'generation-{number}')}"
            return f"{self._launch.store_address}|argmax_parity/generation/{number}"

        self._generations = Generations(self._hub, self._supervisors, self.backend, one_host, store, self._setup_limit)

    def close(self, status: int) -> None:
        """Say farewell with the run's status: other launched processes end with it. Returns when all ranks are gone.

        Closing twice does nothing more.
        """
        for peer in self._supervisors:
            peer.send({"do": "farewell", "status": status})
        has_joined, self._supervisors = bool(self._supervisors), []
        if self._process is not None:
            if not has_joined and self._process.poll() is None:
                # It is at its imports, has no rank yet, and would hear of the farewell once it is through.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            try:
                self._process.wait(_GONE_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._hub is not None and not self._launch.torchrun:
            self._hub.close()
            self._hub = None
        # Under torchrun the sockets close with this process: a rank that ends red before it would have torchrun
        # end this one in the middle of its report.
        if self._generations is not None:
            self._generations.forget()

    # -- generations --------------------------------------------------------------------------------

    def retire(self, spec: Spec | None = None) -> None:
        """End all generations, or that of one spec; the next case gets fresh processes and a fresh group."""
        if self._generations is not None:
            self._generations.retire(spec)

    def facts(self, spec: Spec) -> dict[str, Any]:
        """What rank 0 of a generation says of itself: torch, nccl, device, tie_break. Starts it if need be."""
        return self._all.get(spec).facts

    @property
    def generations_started(self) -> int:
        return 0 if self._generations is None else self._generations.adopted

    @property
    def complaints(self) -> list[str]:
        """What went wrong in teardowns of paths, a sentence each."""
        return [] if self._generations is None else self._generations.complaints

    @property
    def _all(self) -> Generations:
        if self._generations is None:
            raise RanksUnavailable("the ranks are not open")
        return self._generations

    # -- running a case -----------------------------------------------------------------------------

    def run(
        self,
        case: Case,
        path: str,
        *,
        limit: float | None = None,
        count: bool = False,
        debug: bool = False,
        reference: bool = True,
        graph: bool = False,
    ) -> Run:
        """Run a case on its live generation, started if need be; one that did not come through is ended.

        ``graph``: the path is replayed from a CUDA graph, captured at its first call of a shape; for nccl only.

        Raises RanksUnavailable, PathUnusable.
        """
        spec = Spec(loading.qualified(path), case.tp_size, case.bystanders, debug)

        def orders() -> Iterator[Frame]:
            for tp_rank in range(case.tp_size):
                head, arrays = _orders(case, tp_rank, count, reference)
                yield {**head, "graph": graph}, arrays

        return self.run_orders(spec, orders(), limit)

    def run_orders(self, spec: Spec, orders: Iterable[Frame], limit: float | None = None) -> Run:
        """Give each tp rank its order, one that is answered by outcomes; a run that did not come through is ended."""
        generation = self._all.get(spec)
        limit = self.limit if limit is None else limit
        started = time.monotonic()
        for tp_rank, (head, arrays) in enumerate(orders):
            generation.peers[tp_rank + spec.bystanders].send(head, arrays)
        try:
            run = self._collect(generation, limit)
        except RanksUnavailable:
            with contextlib.suppress(RanksUnavailable):  # the first of them is the one to tell of
                self._all.end(generation)  # some of its ranks may still be at this case
            raise
        self.seconds_in_runs += time.monotonic() - started
        if not run.complete:
            self._all.end(generation)
        return run

    def query(self, spec: Spec, order: dict[str, Any], arrays: list[np.ndarray], limit: float) -> list[Frame]:
        """Ask every tp rank the same and return what each answered. Raises RanksUnavailable where one did not."""
        assert self._hub is not None
        generation = self._all.get(spec)
        members = range(spec.bystanders, spec.world_size)
        answers: dict[int, Frame] = {}
        for rank in members:
            generation.peers[rank].send(order, arrays)

        def take(event: Event) -> None:
            self._all.note(event)
            if event.peer.hello.get("generation") == generation.number and event.head.get("event") == "answer":
                answers[event.peer.hello["rank"]] = event.head, event.arrays

        def done() -> bool:
            return bool(generation.died or self._all.lost) or len(answers) == spec.tp_size

        wait_for(self._hub, limit, done, take)
        self._all.check()
        if len(answers) == spec.tp_size and not generation.died:
            return [answers[rank] for rank in members]
        died = dict(generation.died)
        missing = [rank for rank in members if rank not in answers and rank not in died]
        stacks = self._dump(generation, missing, take) if missing else {}
        self._all.end(generation)
        if died:
            rank, end = min(died.items())
            raise RanksUnavailable(f"rank {rank - spec.bystanders} ended by {end.how}")
        where = Stuck(limit, stacks.get(missing[0], "")).where
        raise RanksUnavailable(f"rank {missing[0] - spec.bystanders} gave no answer within {limit:.0f} s ({where})")

    def time_bare(self, case: Case, path: str, repeats: int) -> float:
        """Seconds the slowest rank needs for ``repeats`` times reference and path, alone. For benchmarks."""
        assert self._hub is not None
        generation = self._all.get(Spec(loading.qualified(path), case.tp_size, case.bystanders))
        for tp_rank in range(case.tp_size):
            head, arrays = _orders(case, tp_rank, False, True)
            peer = generation.peers[tp_rank + case.bystanders]
            peer.send({**head, "do": "time", "repeats": repeats}, arrays)
        seconds: list[float] = []

        def take(event: Event) -> None:
            self._all.note(event)
            if event.head.get("event") == "timed":
                seconds.append(event.head["seconds"])

        if not wait_for(self._hub, 600.0, lambda: len(seconds) == case.tp_size or bool(generation.died), take):
            raise RanksUnavailable("the bare paths did not end within 600 s")
        if len(seconds) != case.tp_size:
            raise RanksUnavailable("a rank died while the bare paths were timed")
        return max(seconds)

    def _collect(self, generation: Generation, limit: float) -> Run:
        assert self._hub is not None
        bystanders = generation.shape.bystanders
        members = range(bystanders, generation.shape.world_size)
        outcomes: dict[int, RankOutcome] = {}
        reached: dict[int, tuple[int, str]] = {}
        broken: list[str] = []

        def take(event: Event) -> None:
            self._all.note(event)
            if event.peer.hello.get("generation") != generation.number:
                return
            rank = event.peer.hello["rank"]
            if event.head.get("event") == "done":
                outcomes[rank] = from_wire(event.head, event.arrays)
            elif event.head.get("event") == "reached":
                reached[rank] = event.head["step"], event.head["of"]
            elif event.head.get("event") == "broken":
                broken.append(f"rank {rank - bystanders}: {event.head['error']}")

        def pending() -> list[int]:
            return [rank for rank in members if rank not in outcomes and rank not in generation.died]

        def fault_seen() -> bool:
            ended = ("raised", "refused", "wrong form")
            left_early = any(call.status in ended for outcome in outcomes.values() for call in outcome.calls)
            return left_early or bool(generation.died)

        def settled() -> bool:
            return bool(broken or self._all.lost) or not pending()

        start = time.monotonic()
        while not (settled() or fault_seen()):
            # A rank in a long case says where it is: the limit is then for each part of it.
            start, heard = time.monotonic(), dict(reached)
            wait_for(self._hub, limit, lambda heard=heard: settled() or fault_seen() or reached != heard, take)
            if reached == heard:
                break
        stacks: dict[int, str] = {}
        if not settled() and fault_seen():
            # The others may do the same, a little later. A rank that waits in a collective will not.
            seen = time.monotonic()
            while not settled() and time.monotonic() - start < limit:
                wait_for(self._hub, _GRACE_SECONDS, settled, take)
                if not settled():
                    stacks = self._dump(generation, pending(), take)
                    waits = [Stuck(0, stacks.get(rank, "")) for rank in pending()]
                    if never_answers(waits, time.monotonic() - seen):
                        break
        if broken:
            # The reference of one rank breaks where another one died, which is noticed a little later.
            wait_for(self._hub, _GRACE_SECONDS, lambda: bool(generation.died or self._all.lost), take)
        self._all.check()
        if broken and not generation.died:
            raise RanksUnavailable("the suite's own code failed on " + "; ".join(broken))
        left = pending()
        if left and not stacks:
            stacks = self._dump(generation, left, take)
        seconds = time.monotonic() - start
        ranks = []
        for rank in members:
            # A death also ends what was heard before: the rank did not come through the case.
            if rank in generation.died:
                calls = outcomes[rank].calls if rank in outcomes else ()
                outcome = RankOutcome(calls, generation.died[rank])
            elif rank in outcomes:
                outcome = outcomes[rank]
            else:
                outcome = RankOutcome((), Stuck(seconds, stacks.get(rank, "")))
            ranks.append(replace(outcome, reached=reached.get(rank)))
        return Run(tuple(ranks), limit)

    def _dump(self, generation: Generation, ranks: list[int], take: Any) -> dict[int, str]:
        assert self._hub is not None
        asked = {generation.supervisors[rank] for rank in ranks}
        stacks: dict[int, str] = {}

        def take_dump(event: Event) -> None:
            if event.head.get("event") == "dumped":
                stacks.update({int(rank): text for rank, text in event.head["dumps"].items()})
                asked.discard(event.peer)
            else:
                take(event)

        for peer in asked:
            peer.send({"do": "dump", "generation": generation.number, "ranks": ranks})
        wait_for(self._hub, 5.0, lambda: not asked, take_dump)
        return stacks


def _orders(case: Case, tp_rank: int, count: bool, reference: bool) -> tuple[dict[str, Any], list[np.ndarray]]:
    calls = []
    arrays: list[np.ndarray] = []
    tables: dict[int, int] = {}
    for call in case.calls:
        start, end = call.layout.bounds[tp_rank]
        base = base_of_sliding(call.logits[:, start:end])
        arrays.append(call.local_logits(tp_rank) if base is None else base)
        entry = {
            "bounds": call.layout.bounds,
            "padded_size": call.layout.padded_size,
            "dtype": call.dtype,
            "logits": len(arrays) - 1,
            "d2t": None,
        }
        if base is not None:  # the rank lays the rows out itself: they are many times their base
            entry |= {"slides": end - start, "padding": call.padding}
        if call.d2t is not None:
            if id(call.d2t) not in tables:
                tables[id(call.d2t)] = len(arrays)
                arrays.append(call.d2t)
            entry["d2t"] = tables[id(call.d2t)]
        calls.append(entry)
    return {"do": "run", "calls": calls, "count": count, "reference": reference}, arrays
