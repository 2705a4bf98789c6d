"""A local reduction for top-k: every rank offers its own top k, two all-gathers, and the candidates are ordered again.

What vLLM's ``get_top_k_tokens`` and vllm-project/vllm #55961 do in other packings: value in its dtype, id as int64. A
shard's top k holds every column of it that is in the row's top k, so the union of them does as well. Each rank sends
min(k, widest shard) candidates; a narrower shard fills up with -inf and an id above all others, so that a real column
at -inf still comes first. Engines order candidates by torch.topk, whose order of equals is not defined; here both steps
follow the contract's order, target ids with a table.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from refimpl.contract import VocabShard
from refimpl.paths.collectives import all_gather
from refimpl.topk.contract import check_k
from refimpl.topk.full_gather_topk import greatest

NO_ID = torch.iinfo(torch.int64).max


def gather_topk_candidates(
    local_logits: torch.Tensor, shard: VocabShard, group: dist.ProcessGroup, k: int, d2t: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and ids from min(k, widest shard) candidates a rank: two ``(batch, k)`` tensors.

    Padding columns are not read. Raises UnsupportedInput where there are no k entries.
    """
    check_k(k, shard)
    width = min(k, max(end - start for start, end in shard.bounds))
    ids = torch.arange(shard.start, shard.end, device=local_logits.device)
    if d2t is not None:
        ids = ids + d2t[shard.start : shard.end]
    values, ids = greatest(local_logits[:, : shard.num_real], ids, width)
    missing = (values.shape[0], width - values.shape[1])
    # Not by torch.nn.functional.pad, whose fill value is a float: 2**63 - 1 comes out as -2**63.
    values = torch.cat([values, values.new_full(missing, -torch.inf)], dim=1)
    ids = torch.cat([ids, ids.new_full(missing, NO_ID)], dim=1)
    all_values = torch.cat(all_gather(values, group).unbind(0), dim=1)
    all_ids = torch.cat(all_gather(ids, group).unbind(0), dim=1)
    return greatest(all_values, all_ids, k)
