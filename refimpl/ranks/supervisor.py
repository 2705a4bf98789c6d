"""The supervisor of one launched process: forks executors from a process that has torch loaded, watches and ends them.

It is a program of its own (``python -m refimpl.ranks.supervisor``, its orders come as one JSON line on standard
input), single-threaded and in a session of its own, so that no signal meant for pytest or torchrun reaches the ranks.
It ends when the hub hangs up or its parent goes away, however that happened; then it ends every executor and removes
the run's folder, which is what makes a killed run leave nothing behind.

A fork server of its own rather than multiprocessing's: that one re-runs a console script's ``__main__`` in children,
loses its preload where sys.path differs, and cannot be told to clean up.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass
from typing import Any

from refimpl.ranks import leftovers, wire

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_DUMP_SIGNAL = signal.SIGUSR1
_TAIL_BYTES = 6000
_DUMP_BYTES = 1 << 20  # of every thread; what counts, the innermost lines of the main one, may stand anywhere in it


@dataclass
class _Child:
    generation: int
    rank: int
    pid: int
    pidfd: int
    words: int  # memfd that takes the executor's output and its stack dumps
    dump_start: int = 0


class Supervisor:
    def __init__(self, orders: dict[str, Any]) -> None:
        self._orders = orders
        self._libc = ctypes.CDLL(None, use_errno=True)
        # What a rank leaves behind, in whatever session, becomes a child of this process and not of init.
        self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._own = _children_of_this_process()  # of an engine that was imported here, say
        self._children: dict[int, _Child] = {}
        self._killing: set[int] = set()
        self._selector = selectors.DefaultSelector()
        self._sock = wire.connect((orders["host"], orders["port"]), orders["secret"], timeout=orders["timeout"])
        self._receiver = wire.Receiver(self._sock)

    def run(self) -> int:
        """Serve until the hub's farewell (its status is returned), its hang-up or the parent's end (1)."""
        try:
            self._send(self._hello())
            self._selector.register(self._sock, selectors.EVENT_READ, self._on_hub)
            self._selector.register(0, selectors.EVENT_READ, self._on_parent)
            while True:
                for key, _ in self._selector.select():
                    farewell = key.data()
                    if farewell is not None:
                        return farewell
        except (wire.WireError, OSError):
            return 1
        finally:
            self._end_all()
            if self._orders.get("folder"):
                shutil.rmtree(self._orders["folder"], ignore_errors=True)
            leftovers.remove(self._orders["run"])

    def _hello(self) -> dict[str, Any]:
        import torch

        cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return {
            "role": "supervisor",
            "index": self._orders["index"],
            "pid": os.getpid(),
            "host": host_identity(),
            "cuda_devices": cuda,
            "local_index": self._orders["local_index"],
        }

    def _send(self, head: dict[str, Any]) -> None:
        wire.send(self._sock, head)

    def _on_parent(self) -> int | None:
        return 1 if not os.read(0, 1024) else None

    def _on_hub(self) -> int | None:
        for head, _ in self._receiver.available():
            order = head["do"]
            if order == "start":
                for rank in head["ranks"]:
                    self._start({**head["spec"], **rank})
            elif order == "kill":
                self._kill(head["generation"])
            elif order == "dump":
                self._dump(head["generation"], head["ranks"])
            elif order == "farewell":
                return int(head["status"])
        return None

    def _start(self, spec: dict[str, Any]) -> None:
        words = os.memfd_create("argmax-parity")
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                code = self._become_executor(spec, words)
            except BaseException:
                traceback.print_exc()
            finally:
                # No clean-up of what belongs to the supervisor, and no waiting for a path's threads.
                os._exit(code)
        child = _Child(spec["generation"], spec["rank"], pid, os.pidfd_open(pid), words)
        self._children[pid] = child
        self._selector.register(child.pidfd, selectors.EVENT_READ, lambda: self._on_death(child))

    def _become_executor(self, spec: dict[str, Any], words: int) -> int:
        self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()  # what the path itself starts dies with it
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(words, 1)
        os.dup2(words, 2)
        self._selector.close()
        self._sock.close()
        for other in self._children.values():
            os.close(other.pidfd)
            os.close(other.words)
        os.environ.update(spec["environment"])

        import faulthandler

        from refimpl.ranks import executor

        faulthandler.register(_DUMP_SIGNAL, file=2, all_threads=True, chain=False)
        return executor.main({**spec, **{key: self._orders[key] for key in ("host", "port", "secret", "timeout")}})

    def _on_death(self, child: _Child) -> None:
        self._selector.unregister(child.pidfd)
        _, raw = os.waitpid(child.pid, 0)
        tail = self._words(child, -_TAIL_BYTES)
        os.close(child.pidfd)
        os.close(child.words)
        del self._children[child.pid]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # what it had started itself
        self._end_orphans()
        self._send(
            {
                "event": "died",
                "generation": child.generation,
                "rank": child.rank,
                "signal": os.WTERMSIG(raw) if os.WIFSIGNALED(raw) else None,
                "status": os.WEXITSTATUS(raw) if os.WIFEXITED(raw) else None,
                "tail": tail,
            }
        )
        if child.generation in self._killing:
            self._tell_when_gone(child.generation)

    def _kill(self, generation: int) -> None:
        self._killing.add(generation)
        for child in self._of(generation):
            self._signal(child, signal.SIGKILL)
        self._tell_when_gone(generation)

    def _tell_when_gone(self, generation: int) -> None:
        if not self._of(generation):
            self._killing.discard(generation)
            self._send({"event": "gone", "generation": generation})

    def _dump(self, generation: int, ranks: list[int]) -> None:
        wanted = [child for child in self._of(generation) if child.rank in ranks]
        for child in wanted:
            child.dump_start = os.fstat(child.words).st_size
            self._signal(child, _DUMP_SIGNAL)
        time.sleep(0.03)  # a stopped or GIL-less process writes nothing however long one waits
        dumps = {str(child.rank): self._words(child, child.dump_start) for child in wanted}
        self._send({"event": "dumped", "generation": generation, "dumps": dumps})

    def _words(self, child: _Child, start: int) -> str:
        """What it wrote from there on; a negative start counts from the end."""
        begin = start if start >= 0 else max(0, os.fstat(child.words).st_size + start)
        return os.pread(child.words, _DUMP_BYTES, begin).decode(errors="replace")

    def _of(self, generation: int) -> list[_Child]:
        return [child for child in self._children.values() if child.generation == generation]

    @staticmethod
    def _signal(child: _Child, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, number)

    def _end_all(self) -> None:
        for child in self._children.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            self._signal(child, signal.SIGKILL)
        for child in self._children.values():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child.pid, 0)
        self._children.clear()
        self._end_orphans()

    def _end_orphans(self) -> None:
        """End what ended ranks have left; what those leave in turn comes next."""
        while orphans := _children_of_this_process() - self._own - set(self._children):
            for pid in orphans:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)


def _children_of_this_process() -> set[int]:
    found: set[int] = set()
    with contextlib.suppress(OSError):  # a kernel without these files
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/children") as file:
                found |= {int(pid) for pid in file.read().split()}
    return found


def host_identity() -> str:
    """The same on two processes exactly when they share a machine (and so a file system and loopback)."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()}/{os.readlink('/proc/self/ns/net')}"
    except OSError:
        return socket.gethostname()


def main() -> int:
    # A SIGTERM to the whole session ends the hub first; then the hang-up ends this process in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open(0, "rb", buffering=0, closefd=False) as lifeline:  # unbuffered: what follows the line stays in the pipe
        orders = json.loads(lifeline.readline())
    os.environ.update(orders["environment"])
    sys.path[:0] = [entry for entry in orders["python_path"] if entry not in sys.path]

    from refimpl.ranks import preload

    leftovers.set_run(orders["run"])
    preload.load(orders.get("engine"))
    gc.collect()
    gc.freeze()  # a collection in an executor would else touch, and so copy, every page of what is loaded here
    try:
        supervisor = Supervisor(orders)
    except (wire.WireError, OSError):  # whoever started this has gone meanwhile
        if orders["folder"]:
            shutil.rmtree(orders["folder"], ignore_errors=True)
        return 1
    return supervisor.run()


if __name__ == "__main__":
    # Everything has been ended and removed; unloading torch would only take half a second more.
    os._exit(main())
