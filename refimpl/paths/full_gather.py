"""The reference: gather all logits, lay them out as one row, take one argmax.

It moves O(batch x vocab_size) bytes and is as plain as possible, so that what it answers is right by inspection: first
maximum, a NaN beats every number, and with a table the order of the target vocabulary decides ties, as in the engines'
scatter into a target-sized tensor filled with -inf.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from refimpl.contract import VocabShard
from refimpl.paths.collectives import all_gather


def full_gather(
    local_logits: torch.Tensor, shard: VocabShard, group: dist.ProcessGroup, d2t: torch.Tensor | None = None
) -> torch.Tensor:
    """Token ids of the full row: ``(batch, padded_size)`` logits on each rank give int64 ``(batch,)`` on every rank.

    ``d2t``: int64 ``(vocab_size,)`` offsets, injective, no target negative; the target vocabulary ends with the highest
    target, since filler beyond it can win nothing. A row that is all -inf gives filler id 0 with a table. One
    all-gather; the input is left unchanged.
    """
    gathered = all_gather(local_logits, group)
    logits = torch.cat(
        [rank_logits[:, : end - start] for rank_logits, (start, end) in zip(gathered, shard.bounds, strict=True)], dim=1
    )
    if d2t is not None:
        targets = torch.arange(shard.vocab_size, device=d2t.device) + d2t
        scattered = logits.new_full((logits.shape[0], int(targets.max()) + 1), -torch.inf)
        scattered[:, targets] = logits
        logits = scattered
    return logits.argmax(dim=1)
