"""The contract of a path: what it is given on every rank, and how it may decline.

A path is any callable

    def path(local_logits, shard, group, d2t=None) -> tokens

called once per step on every rank of ``group``.

* ``local_logits``: ``(batch, shard.padded_size)`` float32, bfloat16 or float16 on the rank's device. The real
  columns come first and are read-only; the padding columns after them hold arbitrary values (NaN and +inf too) and
  may be overwritten in place.
* ``shard``: the `VocabShard` of this rank.
* ``group``: a ``torch.distributed.ProcessGroup`` of ``shard.tp_size`` ranks, possibly a proper subgroup of the world.
* ``d2t``: ``None``, or int64 ``(vocab_size,)`` offsets, the same on every rank: ``target_id = k + d2t[k]``.
* returns int64 ``(batch,)``, equal on every rank: draft ids, or target ids when ``d2t`` is given.

A path is imported when the default process group and its own are open: it neither opens nor closes them.

A path may carry ``setup(group, device)``, called once per generation of ranks after the import, and ``teardown()``,
called when a generation that came through is ended (one that failed is killed). It may carry
``tie_break = "target_id"`` or ``"draft_id"`` to claim which id space decides a tie under a table. Without the claim
the rule is observed.
"""

from __future__ import annotations

from dataclasses import dataclass


class UnsupportedInput(Exception):
    """A path declines an input: raised on every rank, before any collective.

    Whether to decline must follow from shapes, dtype, layout and table alone, so that all ranks decide alike.
    """


@dataclass(frozen=True)
class VocabShard:
    """One rank's slice of the vocabulary.

    ``bounds`` holds every rank's ``(start, end)``: contiguous, in rank order, tiling ``[0, vocab_size)``; a range may
    be empty. ``padded_size`` (at least 1, the same on every rank) is the width of the rank's logits: ``num_real`` real
    columns, then ``num_padding`` padding columns.
    """

    tp_rank: int
    tp_size: int
    bounds: tuple[tuple[int, int], ...]
    padded_size: int
    vocab_size: int

    @property
    def start(self) -> int:
        return self.bounds[self.tp_rank][0]

    @property
    def end(self) -> int:
        return self.bounds[self.tp_rank][1]

    @property
    def num_real(self) -> int:
        return self.end - self.start

    @property
    def num_padding(self) -> int:
        return self.padded_size - self.num_real
