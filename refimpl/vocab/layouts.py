"""Layouts: how a vocabulary is cut over the ranks of a tensor-parallel group.

Engines pad the vocabulary and divide it evenly, which hides most layout bugs: nearly every published vocabulary is a
multiple of the pad unit, so no padding column exists. The other builders give uneven, empty and padded shards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations_with_replacement, pairwise

from refimpl.contract import VocabShard


@dataclass(frozen=True)
class Layout:
    """The shards of all ranks.

    ``bounds``: every rank's ``(start, end)``, contiguous and in rank order from 0 to vocab_size, empty ranges allowed.
    ``padded_size``: columns of the logits on every rank, at least 1 and at least the widest shard.

    Raises ValueError, naming what is wrong.
    """

    bounds: tuple[tuple[int, int], ...]
    padded_size: int

    def __post_init__(self) -> None:
        if not self.bounds:
            raise ValueError("a layout needs the bounds of at least one rank")
        expected = 0
        for rank, (start, end) in enumerate(self.bounds):
            if start != expected:
                raise ValueError(f"rank {rank} starts at {start}, it must start at {expected} where the last one ended")
            if end < start:
                raise ValueError(f"rank {rank} ends at {end}, before its start {start}")
            expected = end
        if expected == 0:
            raise ValueError("the vocabulary is empty: no rank holds a column")
        widest = max(end - start for start, end in self.bounds)
        if self.padded_size < widest:
            raise ValueError(f"padded_size {self.padded_size} is less than the widest shard's {widest} columns")

    @property
    def tp_size(self) -> int:
        return len(self.bounds)

    @property
    def vocab_size(self) -> int:
        return self.bounds[-1][1]

    def shard(self, rank: int) -> VocabShard:
        """This rank's view of the layout. Raises ValueError for a rank outside the group."""
        if not 0 <= rank < self.tp_size:
            raise ValueError(f"rank {rank} is none of the {self.tp_size} ranks of the layout")
        return VocabShard(rank, self.tp_size, self.bounds, self.padded_size, self.vocab_size)


def layout_from_sizes(sizes: Sequence[int], extra_padding: int = 0) -> Layout:
    """Shards of the given sizes, 0 for an empty one, padded to the widest plus ``extra_padding`` columns.

    Raises ValueError for a negative size or padding, or if no rank holds a column.
    """
    cuts = accumulate((int(size) for size in sizes), initial=0)
    return Layout(tuple(pairwise(cuts)), int(max(sizes, default=0)) + extra_padding)


def even_layout(vocab_size: int, tp_size: int) -> Layout:
    """Shards whose sizes differ by at most 1, the wider ones first. Raises ValueError if either size is below 1."""
    _check_sizes(vocab_size, tp_size)
    size, wider = divmod(vocab_size, tp_size)
    return layout_from_sizes([size + 1] * wider + [size] * (tp_size - wider))


def padded_layout(vocab_size: int, tp_size: int, multiple: int = 64, *, pad_to_tp_size: bool = False) -> Layout:
    """Shards as engines cut them: pad the vocabulary to a multiple of ``multiple``, divide it evenly by ``tp_size``.

    Padding lies at the very end, so the last ranks may hold nothing but padding: 10 ids padded to 64 at tp_size 4 are
    10 real columns on rank 0 and three empty shards. ``pad_to_tp_size`` pads to the least common multiple of
    ``multiple`` and ``tp_size`` instead, so that every tp_size divides it.

    Raises ValueError if the padded size is not divisible by tp_size, which vLLM asserts too
    (``vllm.distributed.utils.divide``), or if a size is below 1.
    """
    _check_sizes(vocab_size, tp_size)
    if multiple < 1:
        raise ValueError(f"multiple is {multiple}, it must be at least 1")
    if pad_to_tp_size:
        multiple = math.lcm(multiple, tp_size)
    padded_vocab_size = -(-vocab_size // multiple) * multiple
    if padded_vocab_size % tp_size:
        raise ValueError(
            f"the vocabulary of {vocab_size} padded to {padded_vocab_size} is not divisible by tp_size {tp_size}"
        )
    padded_size = padded_vocab_size // tp_size
    cuts = (min(rank * padded_size, vocab_size) for rank in range(tp_size + 1))
    return Layout(tuple(pairwise(cuts)), padded_size)


def uneven_layout(vocab_size: int, tp_size: int) -> Layout:
    """Every shard wider than the one before it, but that of rank 1 of three or more, which is empty; all are padded."""
    weights = [0 if rank == 1 and tp_size > 2 else rank + 1 for rank in range(tp_size)]
    ends = (vocab_size * total // sum(weights) for total in accumulate(weights))
    bounds = tuple(pairwise((0, *ends)))
    return Layout(bounds, max(end - start for start, end in bounds) + 3)


def all_splits(vocab_size: int, tp_size: int) -> Iterator[Layout]:
    """Every contiguous split, empty shards included: binomial(vocab_size + tp_size - 1, tp_size - 1) layouts.

    Shards are padded to the widest of their layout. Raises ValueError if either size is below 1.
    """
    _check_sizes(vocab_size, tp_size)
    for inner in combinations_with_replacement(range(vocab_size + 1), tp_size - 1):
        bounds = tuple(pairwise((0, *inner, vocab_size)))
        yield Layout(bounds, max(end - start for start, end in bounds))


def _check_sizes(vocab_size: int, tp_size: int) -> None:
    if vocab_size < 1 or tp_size < 1:
        raise ValueError(f"vocab_size {vocab_size} and tp_size {tp_size} must both be at least 1")
