"""Peak memory of certifying a checkpoint, for docs/certify.md: ``python -m refimpl.benchmark_memory``.

Writes a checkpoint with a random bfloat16 lm_head of the size asked for, certifies it, and samples the proportional set
size (``Pss`` of ``/proc/PID/smaps_rollup``, in which pages that processes share count once) of every process of the
run. Subtracted is the idle baseline: the same measure of one process with idle ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from refimpl.case import Call, Case
from refimpl.ranks.runtime import Ranks
from refimpl.vocab.layouts import even_layout

_MARK = "ARGMAX_PARITY_MEMORY_BENCHMARK"
_PERIOD_SECONDS = 0.05
_BLOCK_ROWS = 2048
_PROJECT = Path(__file__).resolve().parents[1]


def write_checkpoint(folder: Path, vocab_size: int, hidden_size: int) -> int:
    """A whole language model's norm and lm_head, block by block; bytes of the lm_head."""
    size = vocab_size * hidden_size * 2
    norm = hidden_size * 2
    header = {
        "model.norm.weight": {"dtype": "BF16", "shape": [hidden_size], "data_offsets": [0, norm]},
        "lm_head.weight": {"dtype": "BF16", "shape": [vocab_size, hidden_size], "data_offsets": [norm, norm + size]},
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    config = {"architectures": ["Qwen3ForCausalLM"], "vocab_size": vocab_size, "hidden_size": hidden_size}
    (folder / "config.json").write_text(json.dumps(config))
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.write(_bfloat16(rng.uniform(0.5, 2.0, hidden_size).astype(np.float32)))
        for begin in range(0, vocab_size, _BLOCK_ROWS):
            rows = min(_BLOCK_ROWS, vocab_size - begin)
            file.write(_bfloat16(rng.standard_normal((rows, hidden_size), np.float32) / np.sqrt(hidden_size)))
    return size


def _bfloat16(values: np.ndarray) -> bytes:
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()


class Sampler(threading.Thread):
    """Samples the Pss of all processes whose environment carries a mark, until it is stopped. Bytes."""

    def __init__(self, mark: str) -> None:
        super().__init__(daemon=True)
        self._mark = f"{_MARK}={mark}".encode()
        self._stopped = threading.Event()
        self.peak = 0
        self.last = 0
        self.samples = 0

    def run(self) -> None:
        while not self._stopped.is_set():
            self.last = sum(pss(pid) for pid in self._marked())
            self.peak = max(self.peak, self.last)
            self.samples += 1
            time.sleep(_PERIOD_SECONDS)

    def stop(self) -> None:
        self._stopped.set()
        self.join()

    def _marked(self) -> list[int]:
        found = []
        for place in Path("/proc").iterdir():
            if place.name.isdigit():
                try:
                    if self._mark in (place / "environ").read_bytes():
                        found.append(int(place.name))
                except OSError:
                    continue  # it ended, or is not ours
        return found


def pss(pid: int) -> int:
    """Proportional set size of a process in bytes; 0 once it is gone."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def idle(tp_size: int) -> None:
    """One process with ranks that have answered a case and wait; until its standard input closes."""
    with Ranks(limit=60.0) as ranks:
        case = Case((Call(even_layout(64, tp_size), "float32", np.zeros((1, 64), np.uint32)),))
        ranks.run(case, "gather_pairs")
        print("ready", flush=True)
        sys.stdin.read()


def measure_idle(tp_size: int) -> int:
    mark = secrets.token_hex(8)
    sampler = Sampler(mark)
    command = [sys.executable, "-m", "refimpl.benchmark_memory", "--idle", "--tp", str(tp_size)]
    process = subprocess.Popen(
        command, cwd=_PROJECT, env={**os.environ, _MARK: mark}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdout.readline()
    time.sleep(1.0)
    sampler.start()
    time.sleep(2.0)
    sampler.stop()
    process.stdin.close()
    process.wait()
    return sampler.last


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, default=151936)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--profile", default="dev", help="of Hypothesis: how many cases, not how big they are")
    parser.add_argument("--path", default="gather_pairs")
    parser.add_argument("--properties", nargs="*", default=["properties/"], help="what to run (all)")
    parser.add_argument("--folder", type=Path, help="where to write the checkpoint (a temporary folder)")
    parser.add_argument("--idle", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.idle:
        idle(options.tp)
        return 0
    baseline = measure_idle(options.tp)
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        folder = Path(place) / "checkpoint"
        size = write_checkpoint(folder, options.vocab, options.hidden)
        mark = secrets.token_hex(8)
        sampler = Sampler(mark)
        arguments = [
            *options.properties,
            f"--tp={options.tp}",
            f"--path={options.path}",
            f"--checkpoint={folder}",
            f"--certificate={place}/out.json",
            f"--hypothesis-profile={options.profile}",
            "--rank-timeout=600",
        ]
        started = time.monotonic()
        sampler.start()
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
            cwd=_PROJECT,
            env={**os.environ, _MARK: mark},
            capture_output=True,
            text=True,
            check=False,
        )
        sampler.stop()
        seconds = time.monotonic() - started
    print("\n".join(run.stdout.splitlines()[-12:]))
    used = sampler.peak - baseline
    print(f"pytest ended with {run.returncode} after {seconds:.0f} s; {sampler.samples} samples")
    print(
        f"lm_head {size / 2**30:.2f} GiB; idle baseline {baseline / 2**30:.2f} GiB, peak {sampler.peak / 2**30:.2f} GiB"
    )
    print(f"peak less baseline: {used / 2**30:.2f} GiB, {used / size:.2f} times the lm_head")
    return 0


if __name__ == "__main__":
    sys.exit(main())
