"""What the exhaustive families cost: ``python -m properties.exhaustive.benchmark [--tp 2] [--path gather_pairs]``.

For every family: rows verified per second (enumerated, journalled, sent, run through the path on every rank, compared
with the constructed tokens) beside the bare two paths, full gather and path, called on the same batches inside the
ranks with nothing of the suite in between. The first path of a run also waits for the full gather and NumPy: its own
column.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from properties.exhaustive import columns, independence, orderings, payload, tables, uniformity
from properties.exhaustive.batches import Batch
from refimpl.ranks.journal import Journal
from refimpl.ranks.runtime import Ranks
from refimpl.session import Checker, Session

_BATCHES = 12  # of a family at most


def families(tp_size: int) -> dict[str, Iterator[Batch]]:
    most = orderings.columns_over(tp_size, False)[1]
    return {
        f"orderings of {most}": orderings.over_splits(most, tp_size, orderings.ONE_EACH[:1]),
        "candidates": orderings.candidates(tp_size),
        "values": payload.values(tp_size, False),
        "ids": payload.ids(tp_size, False),
        "widths": columns.of_widths(tp_size, False),
        "layouts": columns.of_layouts(tp_size),
        "tables": tables.of_tables(tp_size, "draft_id", False),
        "arrangements": independence.of_batches(tp_size),
        "situations": uniformity.of_situations(tp_size, "bfloat16"),
    }


def measure(session: Session, path: str, tp_size: int) -> None:
    print(
        f"{'family':>15} {'batch x columns':>16} {'rows':>11} {'first rows/s':>13} {'rows/s':>11} "
        f"{'bare two':>11} share"
    )
    for name, batches in families(tp_size).items():
        rule = "draft_id" if name == "tables" else "target_id"
        chosen = list(itertools.islice(batches, _BATCHES))
        rows = sum(batch.case.num_rows for batch in chosen)
        checker = Checker(session, path, tp_size, "benchmark")
        seconds = []
        for _ in range(3):
            start = time.perf_counter()
            for batch in chosen:
                checker.known(batch.case, batch.tokens, label=f"{name} {batch.label}", tie_rule=rule)
            seconds.append(time.perf_counter() - start)
        bare = sum(min(session.ranks.time_bare(batch.case, path, 1) for _ in range(2)) for batch in chosen)
        widest = max((call for batch in chosen for call in batch.case.calls), key=lambda call: call.logits.size)
        shape = f"{widest.batch} x {widest.layout.vocab_size}"
        first, again = seconds[0], min(seconds[1:])
        print(
            f"{name:>15} {shape:>16} {rows:>11,} {rows / first:>13,.0f} {rows / again:>11,.0f} {rows / bare:>11,.0f} "
            f"{bare / again:>5.0%}",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m properties.exhaustive.benchmark", description="see the module")
    parser.add_argument("--tp", type=int, default=2, help="tensor-parallel size (default: 2)")
    parser.add_argument("--path", default="gather_pairs", help="path (default: gather_pairs)")
    options = parser.parse_args()
    with Ranks() as ranks, tempfile.TemporaryDirectory(prefix="argmax-parity-benchmark-") as folder:
        print(f"{options.path} beside full_gather, tp {options.tp}, {ranks.backend.name}")
        session = Session(ranks, Journal(Path(folder), "benchmark"))
        measure(session, options.path, options.tp)
        session.journal.close(0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
