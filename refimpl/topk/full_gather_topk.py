"""The reference top-k: gather all logits, order the columns by the id that decides ties, one stable sort.

A stable sort in falling order keeps equal values, NaNs among themselves too, in the order of the columns; torch.topk
promises no order of equals.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from refimpl.contract import VocabShard
from refimpl.paths.collectives import all_gather
from refimpl.topk.contract import check_k


def greatest(logits: torch.Tensor, ids: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k greatest of ``(batch, n)`` logits in the contract's order, with their int64 ``(n,)`` or ``(batch, n)`` ids.

    Values ``(batch, k)`` and ids ``(batch, k)``; fewer where n is less than k.
    """
    ids = ids.expand(logits.shape)
    by_id = ids.argsort(dim=1, stable=True)
    values, places = logits.gather(1, by_id).sort(dim=1, descending=True, stable=True)
    return values[:, :k], ids.gather(1, by_id.gather(1, places[:, :k]))


def full_gather_topk(
    local_logits: torch.Tensor, shard: VocabShard, group: dist.ProcessGroup, k: int, d2t: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and ids of the full row: ``(batch, padded_size)`` logits give two ``(batch, k)`` tensors.

    One all-gather; the input is left unchanged. Raises UnsupportedInput where there are no k entries.
    """
    check_k(k, shard)
    gathered = all_gather(local_logits, group)
    logits = torch.cat(
        [rank_logits[:, : end - start] for rank_logits, (start, end) in zip(gathered, shard.bounds, strict=True)], dim=1
    )
    ids = torch.arange(shard.vocab_size, device=logits.device)
    return greatest(logits, ids if d2t is None else ids + d2t, k)
