"""Refusals that several engines share: an input they never hand to their fast path.

All follow from the layout and the table alone, so every rank decides alike and before any collective.
"""

from __future__ import annotations

from itertools import pairwise

import torch

from refimpl.contract import UnsupportedInput, VocabShard


def no_table(d2t: torch.Tensor | None, engine: str) -> None:
    """For engines that keep the full gather where there is a reduced draft vocabulary."""
    if d2t is not None:
        raise UnsupportedInput(f"{engine} takes the full gather where there is a D2T table")


def equal_shards(shard: VocabShard, engine: str) -> None:
    """For engines whose shards are all as wide as their logits: the padding lies at the end of the vocabulary.

    Rank r starts at ``r * padded_size``; the last ranks may hold padding only.
    """
    ends = [min(rank * shard.padded_size, shard.vocab_size) for rank in range(shard.tp_size + 1)]
    if shard.bounds != tuple(pairwise(ends)):
        raise UnsupportedInput(f"{engine} cuts the padded vocabulary into shards of one width; these are others")


def no_padding(shard: VocabShard, engine: str) -> None:
    """For engines that demand a vocabulary which tp_size divides."""
    if shard.vocab_size != shard.tp_size * shard.padded_size:
        raise UnsupportedInput(f"{engine} takes its fast path only where the shards are of one width, without padding")
    equal_shards(shard, engine)
