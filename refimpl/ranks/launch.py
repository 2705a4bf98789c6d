"""How this process was launched: by torchrun as one of several, or alone; and how those several find one hub."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

_MEETING_SECONDS = 180


@dataclass(frozen=True)
class Launch:
    """What torchrun told this process; a process launched alone is a world of one."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    nodes: int = 1
    restart: int = 0
    max_restarts: int = 0
    torchrun: bool = False

    @classmethod
    def from_environment(cls) -> Launch:
        env = os.environ
        if "TORCHELASTIC_RUN_ID" not in env or "RANK" not in env:
            return cls()
        return cls(
            rank=int(env["RANK"]),
            world_size=int(env["WORLD_SIZE"]),
            local_rank=int(env["LOCAL_RANK"]),
            nodes=int(env.get("GROUP_WORLD_SIZE", "1")),
            restart=int(env.get("TORCHELASTIC_RESTART_COUNT", "0")),
            max_restarts=int(env.get("TORCHELASTIC_MAX_RESTARTS", "0")),
            torchrun=True,
        )

    @property
    def is_driver(self) -> bool:
        return self.rank == 0

    def store(self) -> Any:
        """torchrun's own store; the suite uses it to publish the hub's address, never to carry cases."""
        import torch.distributed as dist

        agent_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE", "True") == "True"
        return dist.TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=self.is_driver and not agent_store,
            timeout=timedelta(seconds=_MEETING_SECONDS),
            wait_for_workers=False,
        )

    @property
    def store_key(self) -> str:
        return f"argmax_parity/hub/{self.restart}"

    @property
    def store_address(self) -> str:
        return f"{os.environ['MASTER_ADDR']}|{os.environ['MASTER_PORT']}"

    def send_home(self, status: int) -> None:
        """Tell the other ranks that there will be no hub, and which status to end with."""
        with contextlib.suppress(Exception):  # torchrun ends them where its store is gone
            self.store().set(self.store_key, json.dumps({"home": status}))

    def listening_address(self) -> str:
        """Loopback, unless torchrun spans several agents that may be on several machines."""
        if self.nodes == 1:
            return "127.0.0.1"
        with contextlib.suppress(OSError):
            return socket.gethostbyname(os.environ["MASTER_ADDR"])
        return "127.0.0.1"


def start_supervisor(launch: Launch, hub: dict[str, Any], folder: str | None) -> subprocess.Popen[bytes]:
    """Start this process's supervisor. Its standard input is its lifeline: when it closes, it ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "refimpl.ranks.supervisor"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=None,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": _python_path()},
    )
    orders = {
        **hub,
        "index": launch.rank,
        "local_index": launch.local_rank,
        "folder": folder,
        "timeout": 30.0,
        "python_path": [entry for entry in sys.path if entry],
        "environment": {
            # Asked of NVML, the number of GPUs does not initialise CUDA, which no fork survives.
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            # The executors' group is not torchrun's.
            "TORCHELASTIC_USE_AGENT_STORE": "False",
        },
    }
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended already, which is told where it is waited for
        process.stdin.write(json.dumps(orders).encode() + b"\n")
        process.stdin.flush()
    return process


def _python_path() -> str:
    """So that ``-m refimpl...`` is found wherever pytest was started."""
    root = str(Path(__file__).resolve().parents[2])
    inherited = os.environ.get("PYTHONPATH")
    return root if not inherited else os.pathsep.join([root, inherited])


def serve(launch: Launch) -> int:
    """What every torchrun rank but 0 does: keep a supervisor until the driver says farewell; return its status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        raw = launch.store().get(launch.store_key)
    except Exception:
        return 1  # rank 0 ended before it had a hub, and has said why
    hub = json.loads(raw)
    if "home" in hub:
        return int(hub["home"])
    process = start_supervisor(launch, hub, folder=None)

    def end(number: int, frame: Any) -> None:
        # Only the lifeline is cut: the wait below, which this interrupted, holds the lock that another would need.
        process.stdin.close()  # type: ignore[union-attr]

    signal.signal(signal.SIGTERM, end)
    return process.wait()
