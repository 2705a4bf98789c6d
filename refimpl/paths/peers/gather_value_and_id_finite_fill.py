"""The greedy head of DFlash drafts, always on in SGLang: two gathers, and the lowest finite value for an empty shard.

After ``_greedy_sample_from_vocab_parallel_head`` (sgl-project/sglang, python/sglang/srt/speculative/dflash_worker.py at
commit 7f151c5e; TokenSpeed has a sibling in runtime/execution/drafter/dflash.py). Values travel in the logits' dtype,
ids as int64 from the shard's own start, both gathered on dimension 0. The projection runs over real rows only, so
padding never exists. An empty shard sends ``finfo(dtype).min``, not -inf, with its start id: it wins rows that are all
-inf, and ties with a real value as low as that. An empty batch returns before any collective. There is no table. Left
out: the second projection for added vocabulary, which the contract's shards do not have.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from refimpl.contract import VocabShard
from refimpl.paths.collectives import all_gather
from refimpl.paths.peers import gates


def gather_value_and_id_finite_fill(
    local_logits: torch.Tensor, shard: VocabShard, group: dist.ProcessGroup, d2t: torch.Tensor | None = None
) -> torch.Tensor:
    """Token ids from two all-gathers: ``(batch, padded_size)`` logits give int64 ``(batch,)``.

    Raises UnsupportedInput for a table.
    """
    gates.no_table(d2t, "the DFlash head")
    batch = local_logits.shape[0]
    if batch == 0:
        return torch.empty(0, dtype=torch.int64, device=local_logits.device)
    if shard.num_real:
        values, columns = local_logits[:, : shard.num_real].max(dim=1)
        ids = columns + shard.start
    else:
        values = local_logits.new_full((batch,), torch.finfo(local_logits.dtype).min)
        ids = torch.full((batch,), shard.start, dtype=torch.int64, device=local_logits.device)
    gathered_values, gathered_ids = all_gather(values, group), all_gather(ids, group)
    best_rank = gathered_values.argmax(dim=0, keepdim=True)
    return gathered_ids.gather(0, best_rank).squeeze(0)
