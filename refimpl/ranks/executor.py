"""The executor of one tp rank: owns the device and the process groups, runs the reference and the path on each case.

It is crash-only. Whatever a path does to it (raise, leave a collective open, sleep, die) is for the driver to notice;
it never tries to mend its group and is replaced after anything but tokens or a refusal.
"""

from __future__ import annotations

import os
import random
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from refimpl import loading
from refimpl.case import padded, sliding
from refimpl.contract import UnsupportedInput, VocabShard
from refimpl.paths.full_gather import full_gather
from refimpl.ranks import answers, subnormals, topk_executor, wire
from refimpl.ranks.counting import CollectiveCounter
from refimpl.ranks.engine_executor import EngineExecutor
from refimpl.ranks.head_executor import HeadExecutor
from refimpl.ranks.source import source_of

# The suite's own limits end a case; the group's must never come first, or one cause would show as two.
_GROUP_TIMEOUT = timedelta(hours=2)


def main(spec: dict[str, Any]) -> int:
    """Run one executor to the hub's hang-up; the return value is the process's exit status."""
    sock = wire.connect((spec["host"], spec["port"]), spec["secret"], timeout=spec["timeout"])
    receiver = wire.Receiver(sock)
    me = {"role": "executor", "generation": spec["generation"], "rank": spec["rank"], "pid": os.getpid()}
    wire.send(sock, me)
    try:
        executor = Executor(spec, lambda head: wire.send(sock, head))
        wire.send(sock, {"event": "open"})
        while True:
            head, arrays = receiver.next()
            if head["do"] == "load":
                executor.load(head["path"])
                wire.send(sock, {"event": "imported"})
                executor.set_up()
                wire.send(sock, {"event": "ready", **executor.facts()})
            elif head["do"] == "run":
                try:
                    answer, results = executor.run(head, arrays)
                except Exception:
                    # Ours, not the path's: the driver calls it unknown.
                    answer, results = {"event": "broken", "error": traceback.format_exc(limit=8)}, []
                wire.send(sock, answer, results)
            elif head["do"] == "head":
                wire.send(sock, *executor.heads.answer(head, arrays))
            elif head["do"] == "topk":
                wire.send(sock, *topk_executor.answer(executor, head, arrays))
            elif head["do"] == "engine":
                wire.send(sock, *executor.engines.answer(head, arrays))
            elif head["do"] == "time":
                wire.send(sock, {"event": "timed", "seconds": executor.time_bare(head, arrays)})
            elif head["do"] == "stop":
                wire.send(sock, {"event": "stopped", "error": executor.stop()})
    except _NotReady as problem:
        wire.send(sock, {"event": "not ready", "stage": problem.stage, "error": str(problem)})
        return 0
    except (wire.WireError, OSError):
        return 0


class _NotReady(Exception):
    def __init__(self, stage: str, error: str) -> None:
        super().__init__(error)
        self.stage = stage


class CannotBeCaptured(Exception):
    """A path cannot be recorded in a CUDA graph; nothing that happens once it is replayed is called so."""


@dataclass(frozen=True, eq=False)
class _Captured:
    """A CUDA graph of the path, with the input it reads and the result it writes."""

    graph: torch.cuda.CUDAGraph
    local_logits: torch.Tensor
    d2t: torch.Tensor | None
    tokens: Any


class Executor:
    def __init__(self, spec: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
        """``tell``: sends the driver a word of where a long case has come to."""
        self._spec = spec
        self.tell = tell
        # A fresh process would draw the same "random" numbers as the last one and look deterministic.
        torch.default_generator.manual_seed(spec["seed"])
        random.seed(spec["seed"])
        np.random.seed(spec["seed"] % 2**32)
        torch.set_num_threads(1)
        try:
            self.device = self._open_device()
            if self.device.type == "cuda":
                torch.cuda.manual_seed(spec["seed"])
            self._open_groups()
        except Exception as error:
            raise _NotReady("group", f"{type(error).__name__}: {error}") from error

    def load(self, path: str) -> None:
        """Import the path. Until then no code under test is in this process."""
        try:
            self._path = loading.load_path(path)
        except loading.LoadError as error:
            raise _NotReady("import", str(error)) from error
        self._path_name = path
        self.heads = HeadExecutor(self)
        self.engines = EngineExecutor(self)

    def set_up(self) -> None:
        """Call the path's setup."""
        setup = getattr(self._path, "setup", None)
        if setup is not None:
            try:
                setup(self.group, self.device)
            except BaseException as error:
                raise _NotReady("setup", f"setup() raised {type(error).__name__}: {error}") from error

    def _open_device(self) -> torch.device:
        if self._spec["backend"] != "nccl":
            return torch.device("cpu")
        index = self._spec["local_rank"] % torch.cuda.device_count()
        torch.cuda.set_device(index)
        return torch.device("cuda", index)

    def _open_groups(self) -> None:
        spec = self._spec
        dist.set_debug_level_from_env()
        if spec["store"].startswith("file:"):
            file = Path(spec["store"][5:])
            if not file.parent.is_dir():
                # FileStore would wait for the folder for as long as the group's timeout is.
                raise FileNotFoundError(f"the run's temporary folder {file.parent} is gone; somebody removed it")
            store: dist.Store = dist.FileStore(str(file), spec["world_size"])
        else:
            host, port, prefix = spec["store"].split("|")
            store = dist.PrefixStore(prefix, dist.TCPStore(host, int(port), is_master=False))
        dist.init_process_group(
            spec["backend"],
            store=store,
            rank=spec["rank"],
            world_size=spec["world_size"],
            timeout=_GROUP_TIMEOUT,
            device_id=self.device if self.device.type == "cuda" else None,
        )
        members = list(range(spec["bystanders"], spec["world_size"]))
        # The reference has a group of its own: what a path leaves behind in the tested one must not reach it.
        self.reference_group = dist.new_group(members, timeout=_GROUP_TIMEOUT)
        self.group = dist.new_group(members, timeout=_GROUP_TIMEOUT)
        self.tp_rank = spec["rank"] - spec["bystanders"]

    def facts(self) -> dict[str, Any]:
        nccl = ".".join(map(str, torch.cuda.nccl.version())) if self.device.type == "cuda" else None
        return {
            "torch": torch.__version__,
            "nccl": nccl,
            "device": torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu",
            "tie_break": getattr(self._path, "tie_break", None),
            "source": source_of(self._path_name),
            "misfit": loading.misfit(self._path),
            "teardown": getattr(self._path, "teardown", None) is not None,
        }

    def stop(self) -> str | None:
        """Call the path's teardown; what it raised, in words."""
        teardown = getattr(self._path, "teardown", None)
        if teardown is not None:
            try:
                teardown()
            except BaseException as error:
                return f"teardown() raised {type(error).__name__}: {error}"
        return None

    def run(self, head: dict[str, Any], arrays: list[np.ndarray]) -> tuple[dict[str, Any], list[np.ndarray]]:
        """All calls of a case, stopping at the first that gives no tokens."""
        outcomes: list[dict[str, Any]] = []
        results: list[np.ndarray] = []
        returned: list[tuple[int, torch.Tensor, np.ndarray]] = []
        graphs: dict[Any, _Captured] | None = {} if head["graph"] else None
        for index, call in enumerate(head["calls"]):
            shard = self.shard(call)
            given = self.tensor(self._patterns(call, arrays), call["dtype"])
            table = None if call["d2t"] is None else torch.from_numpy(arrays[call["d2t"]])
            d2t = None if table is None else table.clone().to(self.device)
            outcome: dict[str, Any] = {}
            if head["reference"]:
                # Ranks arrive at a case at different times; whoever is early waits here, not in the path's group.
                expected = self.run_reference(given, shard, d2t)
                outcome["reference"] = len(results)
                results.append(expected.cpu().numpy())
            local_logits = given.clone()
            tokens = self.one_call(given, local_logits, shard, table, outcome, head["count"], graphs)
            outcomes.append(outcome)
            if tokens is None:
                break
            kept = tokens.detach().cpu().numpy().copy()
            outcome["tokens"] = len(results)
            results.append(kept)
            returned.append((index, tokens, kept))
            local_logits.zero_()  # an engine uses this memory again; a result must not lie in it
        for index, tokens, kept in returned:
            later = tokens.detach().cpu().numpy()
            if not np.array_equal(later, kept):
                outcomes[index]["overwritten"] = len(results)
                results.append(later.copy())
        return {"event": "done", "calls": outcomes}, results

    def time_bare(self, head: dict[str, Any], arrays: list[np.ndarray]) -> float:
        """Seconds for both paths over a case, many times, with nothing of the suite in between."""
        inputs = []
        for call in head["calls"]:
            shard = self.shard(call)
            inputs.append((self.tensor(self._patterns(call, arrays), call["dtype"]), shard))
        start = time.perf_counter()
        for _ in range(head["repeats"]):
            for given, shard in inputs:
                self.run_reference(given, shard, None)
                self.run_path(given, shard, None)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - start

    def shard(self, call: dict[str, Any]) -> VocabShard:
        bounds = tuple((start, end) for start, end in call["bounds"])
        return VocabShard(self.tp_rank, len(bounds), bounds, call["padded_size"], bounds[-1][1])

    def _patterns(self, call: dict[str, Any], arrays: list[np.ndarray]) -> np.ndarray:
        given = arrays[call["logits"]]
        if "slides" not in call:
            return given
        return padded(sliding(given, call["slides"]), call["padded_size"], call["padding"], self.tp_rank)

    def tensor(self, patterns: np.ndarray, dtype: str) -> torch.Tensor:
        plain = torch.from_numpy(patterns.view(np.int32 if dtype == "float32" else np.int16))
        return plain.view(getattr(torch, dtype)).to(self.device)

    def run_reference(self, given: torch.Tensor, shard: VocabShard, d2t: torch.Tensor | None) -> torch.Tensor:
        with subnormals.kept():
            return full_gather(given, shard, self.reference_group, d2t)

    @property
    def path(self) -> Any:
        return self._path

    def run_path(self, given: torch.Tensor, shard: VocabShard, d2t: torch.Tensor | None) -> Any:
        return self._path(given, shard, self.group, d2t)

    def _replay(
        self, graphs: dict[Any, _Captured], local_logits: torch.Tensor, shard: VocabShard, d2t: torch.Tensor | None
    ) -> Any:
        """The path from a CUDA graph, captured at the first call of this shape and fed with this call's input."""
        key = (shard, local_logits.shape, local_logits.dtype, d2t is None)
        if key not in graphs:
            graphs[key] = self._capture(local_logits.clone(), shard, None if d2t is None else d2t.clone())
        captured = graphs[key]
        captured.local_logits.copy_(local_logits)
        if d2t is not None and captured.d2t is not None:
            captured.d2t.copy_(d2t)
        captured.graph.replay()
        local_logits.copy_(captured.local_logits)  # what the path wrote into its input is judged as in any call
        # Every replay writes to the same memory; a caller of a graph takes its result from there.
        return captured.tokens.clone() if isinstance(captured.tokens, torch.Tensor) else captured.tokens

    def _capture(self, local_logits: torch.Tensor, shard: VocabShard, d2t: torch.Tensor | None) -> _Captured:
        # What is made on a first call, connections and buffers, cannot be made during a capture.
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            self.run_path(local_logits.clone(), shard, d2t)
        torch.cuda.current_stream(self.device).wait_stream(side)
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        # NCCL's own threads call into CUDA meanwhile, which the default mode forbids.
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                tokens = self.run_path(local_logits, shard, d2t)
        except Exception as error:
            raise CannotBeCaptured(f"{type(error).__name__}: {error}") from error
        return _Captured(graph, local_logits, d2t, tokens)

    def one_call(
        self,
        given: torch.Tensor,
        local_logits: torch.Tensor,
        shard: VocabShard,
        table: torch.Tensor | None,
        outcome: dict[str, Any],
        count: bool,
        graphs: dict[Any, _Captured] | None,
    ) -> torch.Tensor | None:
        d2t = None if table is None else table.clone().to(self.device)
        counter = CollectiveCounter()

        def call() -> Any:
            if graphs is not None:
                return self._replay(graphs, local_logits, shard, d2t)
            if not count:
                return self.run_path(local_logits, shard, d2t)
            with counter:
                return self.run_path(local_logits, shard, d2t)

        tokens = self.own_call(call, given, outcome)
        if outcome["status"] in ("answered", "wrong form"):
            outcome |= {
                "collectives": counter.seen if count else None,
                "modified": self.first_change(given, local_logits, shard.num_real),
                "table_modified": d2t is not None and table is not None and not torch.equal(d2t.cpu(), table),
            }
        return tokens

    def own_call(self, call: Callable[[], Any], given: torch.Tensor, outcome: dict[str, Any]) -> torch.Tensor | None:
        """The tokens that code under test gives for a batch like ``given``; how it ended stands in ``outcome``."""
        shape = (given.shape[0],)
        tokens: torch.Tensor | None = self.own_answer(
            call, lambda tokens: answers.wrong_form(tokens, shape, given.device), outcome
        )
        return tokens

    def own_answer(
        self, call: Callable[[], Any], wrong_form: Callable[[Any], str | None], outcome: dict[str, Any]
    ) -> Any:
        """What code under test gives, None where that is nothing or has a wrong form; ``outcome`` says how it ended."""
        before = self._sequence()
        started = time.perf_counter()
        try:
            tokens = call()
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
        except UnsupportedInput as refusal:
            outcome |= answers.refused(refusal, self._sequence() - before)
            return None
        except BaseException as error:  # SystemExit and KeyboardInterrupt of a path are its failures too
            outcome |= answers.raised(error)
            return None
        seconds = time.perf_counter() - started
        outcome |= {"status": "answered", "issued": self._sequence() - before, "seconds": seconds}
        wrong = wrong_form(tokens)
        if wrong:
            outcome |= {"status": "wrong form", "message": wrong}
            return None
        return tokens

    def _sequence(self) -> int:
        try:
            return int(self.group._get_sequence_number_for_group())
        except (RuntimeError, AttributeError):
            return -1

    @staticmethod
    def first_change(given: torch.Tensor, after: torch.Tensor, num_real: int) -> list[int] | None:
        as_bits = torch.int32 if given.element_size() == 4 else torch.int16
        before, now = given.view(as_bits)[:, :num_real], after.view(as_bits)[:, :num_real]
        if torch.equal(before, now):
            return None
        return [int(i) for i in (before != now).nonzero()[0]]
