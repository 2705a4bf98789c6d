"""What a rank alone can see of a call, in every combination over the ranks: none of it may decide a collective."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from properties.exhaustive.batches import Batch, grouped, inert
from refimpl import bits
from refimpl.case import Call
from refimpl.vocab.layouts import layout_from_sizes

_COLUMNS = 2
EVERY_RANK_UP_TO = 3


def situations(dtype: str) -> dict[str, int | None]:
    """What all columns of a shard hold; None: it has no columns. ``padded`` shards have one column less."""
    one, inf = int(bits.encode(np.array(1.0), dtype)), bits.INFINITY[dtype]
    return {
        "ordinary": one,
        "padded": one,
        "empty": None,
        "sure winner": inf,
        "nan": bits.NAN[dtype],
        "never wins": bits.neg_inf(dtype),
    }


def combinations(tp_size: int) -> Iterator[tuple[str, ...]]:
    """Every situation on every rank up to tp_size 3; beyond, on every two ranks among ordinary ones."""
    names = tuple(situations("float32"))
    if tp_size <= EVERY_RANK_UP_TO:
        yield from itertools.product(names, repeat=tp_size)
        return
    seen = set()
    for first, second in itertools.combinations(range(tp_size), 2):
        for pair in itertools.product(names, repeat=2):
            held = tuple(dict(zip((first, second), pair, strict=True)).get(rank, names[0]) for rank in range(tp_size))
            if held not in seen:
                yield held
            seen.add(held)


def of_situations(tp_size: int, dtype: str) -> Iterator[Batch]:
    """A call of one row and of two alike for every combination in which any rank holds a column.

    The group is the world; then, of one row, a part of it.
    """
    for bystanders, batches in ((0, (1, 2)), (1, (1,))):
        calls = _calls(tp_size, dtype, batches)
        yield from grouped(calls, f"situations {tp_size} {dtype} {bystanders}", bystanders)


def _calls(tp_size: int, dtype: str, batches: tuple[int, ...]) -> Iterator[tuple[Call, np.ndarray]]:
    known = situations(dtype)
    place = {None: -1, known["never wins"]: 0, known["ordinary"]: 1, known["sure winner"]: 2, known["nan"]: 3}
    for names in combinations(tp_size):
        values = [known[name] for name in names]
        sizes = [0 if v is None else _COLUMNS - (n == "padded") for n, v in zip(names, values, strict=True)]
        if not any(sizes):
            continue
        layout = layout_from_sizes(sizes, _COLUMNS - max(sizes))
        row = np.array([v for v, size in zip(values, sizes, strict=True) for _ in range(size)], bits.STORAGE[dtype])
        best = max(range(tp_size), key=lambda rank: (place[values[rank]], -rank))
        for batch in batches:
            logits = np.repeat(row[None, :], batch, axis=0)
            yield Call(layout, dtype, logits, inert(dtype)), np.full(batch, layout.bounds[best][0], np.int64)
