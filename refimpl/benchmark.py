"""What verification costs: ``python -m refimpl.benchmark [--tp 2,4] [--seconds 3]``.

Two tables, every ratio measured side by side in one run, the two sides taking turns:

* rows verified per second (generated, sent, run through both paths on every rank, judged, journalled) for several
  shard widths, as a share of the bare two paths: the same batches, called in a loop inside the ranks by nobody else;
* seconds per example on live ranks against a fresh spawn per example on the same cases.
"""

from __future__ import annotations

import argparse
import secrets
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from refimpl import bits
from refimpl.case import Call, Case
from refimpl.ranks.journal import Journal
from refimpl.ranks.runtime import Ranks
from refimpl.session import Checker, Session
from refimpl.vocab.layouts import even_layout

PATH = "gather_pairs"
# (shard width, rows a batch): about as many values a batch as the strategies draw at that width.
SHAPES = ((8, 4096), (64, 4096), (4096, 256), (75968, 32))
_ROUNDS = 5


def make_case(width: int, batch: int, tp_size: int, rng: np.random.Generator) -> Case:
    """Random bfloat16 rows with special values and ties in a few columns, as a property's example holds them."""
    vocab_size = width * tp_size
    logits = rng.integers(0, 1 << 16, (batch, vocab_size), dtype=np.uint16)
    columns = rng.choice(vocab_size, min(6, vocab_size), replace=False)
    logits[:, columns] = rng.choice(bits.landmarks("bfloat16"), (batch, len(columns)))
    return Case((Call(even_layout(vocab_size, tp_size), "bfloat16", logits),))


def _verify_for(seconds: float, checker: Checker, width: int, batch: int, rng: np.random.Generator) -> float:
    """Rows verified per second, every example a new one."""
    rows, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        rows += checker(make_case(width, batch, checker.tp_size, rng)).tally.rows
    return rows / spent


def verification_table(ranks: Ranks, tp_sizes: tuple[int, ...], seconds: float) -> None:
    print(
        f"{'tp':>3} {'shard width':>12} {'rows a batch':>13} {'verified rows/s':>16} {'bare rows/s':>12} {'share':>7}"
    )
    with tempfile.TemporaryDirectory(prefix="argmax-parity-benchmark-") as folder:
        session = Session(ranks, Journal(Path(folder), "benchmark"))
        for tp_size in tp_sizes:
            for width, batch in SHAPES:
                checker = Checker(session, PATH, tp_size, "benchmark")
                rng = np.random.default_rng(0)
                fixed = make_case(width, batch, tp_size, rng)

                checker(fixed)
                repeats = max(3, int(seconds / _ROUNDS / ranks.time_bare(fixed, PATH, 3) * 3))
                pairs = []
                for _ in range(_ROUNDS):
                    verified = _verify_for(seconds / _ROUNDS, checker, width, batch, rng)
                    pairs.append((verified, batch * repeats / ranks.time_bare(fixed, PATH, repeats)))
                verified, plain = (statistics.median(side) for side in zip(*pairs, strict=True))
                share = statistics.median(v / p for v, p in pairs)
                print(
                    f"{tp_size:>3} {width:>12,} {batch:>13,} {verified:>16,.0f} {plain:>12,.0f} {share:>7.0%}",
                    flush=True,
                )
        session.journal.close(0)


def _spawned(rank: int, tp_size: int, store: str, arrays: list[np.ndarray], width: int) -> None:
    """One rank of a fresh spawn: everything a rank needs from nothing, both paths, compare."""
    import os

    import torch.distributed as dist

    from refimpl.paths.full_gather import full_gather
    from refimpl.paths.gather_pairs import gather_pairs

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, tp_size), rank=rank, world_size=tp_size)
    shard = even_layout(width * tp_size, tp_size).shard(rank)
    logits = torch.from_numpy(arrays[rank].view(np.int16)).view(torch.bfloat16)
    group = dist.group.WORLD
    assert group is not None
    assert torch.equal(full_gather(logits, shard, group), gather_pairs(logits, shard, group))
    dist.destroy_process_group()


def spawn_table(ranks: Ranks, tp_sizes: tuple[int, ...], examples: int) -> None:
    import torch.multiprocessing as mp

    print(f"\n{'tp':>3} {'live ranks, s/example':>22} {'fresh spawn, s/example':>23} {'times faster':>13}")
    width, batch = 8, 1024
    with tempfile.TemporaryDirectory(prefix="argmax-parity-benchmark-") as folder:
        session = Session(ranks, Journal(Path(folder), "benchmark"))
        for tp_size in tp_sizes:
            checker = Checker(session, PATH, tp_size, "benchmark")
            rng = np.random.default_rng(1)
            checker(make_case(width, batch, tp_size, rng))
            live, fresh = [], []
            for _ in range(examples):
                case = make_case(width, batch, tp_size, rng)
                start = time.perf_counter()
                checker(case)
                live.append(time.perf_counter() - start)
                arrays = [case.calls[0].local_logits(rank) for rank in range(tp_size)]
                store = str(Path(folder) / secrets.token_hex(4))
                start = time.perf_counter()
                mp.spawn(_spawned, (tp_size, store, arrays, width), nprocs=tp_size)
                fresh.append(time.perf_counter() - start)
            a, b = statistics.median(live), statistics.median(fresh)
            print(f"{tp_size:>3} {a:>22.4f} {b:>23.2f} {b / a:>13.0f}", flush=True)
        session.journal.close(0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m refimpl.benchmark", description=__doc__.splitlines()[0])
    parser.add_argument("--tp", default="2,4", help="tensor-parallel sizes (default: 2,4)")
    parser.add_argument("--seconds", type=float, default=3.0, help="measuring time a line and side (default: 3)")
    parser.add_argument("--examples", type=int, default=5, help="examples for the spawn table (default: 5)")
    options = parser.parse_args()
    tp_sizes = tuple(int(word) for word in options.tp.split(","))
    with Ranks() as ranks:
        print(f"{PATH} beside full_gather, bfloat16, {ranks.backend.name}, torch {torch.__version__}")
        verification_table(ranks, tp_sizes, options.seconds)
        spawn_table(ranks, tp_sizes, options.examples)
    return 0


if __name__ == "__main__":
    sys.exit(main())
