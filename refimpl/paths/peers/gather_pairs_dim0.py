"""ATOM's reduction: float32 (value, id) pairs gathered on dimension 0, seen as (tp_size, rows, 2).

After ``ParallelLMHead.compute_argmax_token`` (ROCm/ATOM, as of September 2026; the fused pack kernel came with pull
request #2069, its tie option "low" with #2244). The vocabulary must divide by tp_size, so there is no padding. Ids are
float32 and nothing gates the vocabulary at 2**24. There is no table.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from refimpl.contract import VocabShard
from refimpl.paths.collectives import all_gather
from refimpl.paths.peers import gates


def gather_pairs_dim0(
    local_logits: torch.Tensor, shard: VocabShard, group: dist.ProcessGroup, d2t: torch.Tensor | None = None
) -> torch.Tensor:
    """Token ids from one float32 pair a rank: ``(batch, padded_size)`` logits give int64 ``(batch,)``.

    Raises UnsupportedInput for a table, and where tp_size does not divide the vocabulary.
    """
    gates.no_table(d2t, "ATOM")
    gates.no_padding(shard, "ATOM")
    values, columns = local_logits.max(dim=1)
    pairs = torch.stack([values.float(), (columns + shard.start).float()], dim=1)
    stacked = all_gather(pairs, group).view(shard.tp_size, -1, 2)
    best_rank = stacked[..., 0].argmax(dim=0, keepdim=True)
    return stacked[..., 1].gather(0, best_rank).squeeze(0).long()
