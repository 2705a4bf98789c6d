"""TensorRT-LLM's all-reduce form: each rank writes its pair into its own slots of a zeroed row; the rows are summed.

After ``DraftArgmaxExchange`` and ``DraftArgmaxMailbox`` (NVIDIA/TensorRT-LLM, speculative/draft_argmax.py and
mtp_tail_trim.py, as of September 2026). A row is 128 float32 words whatever the group's size, so 2 * tp_size must not
exceed 128. Every slot has one contributor that is not zero, so the sum is what an all-gather would bring, but for two
patterns that no token depends on: a -0.0 arrives as 0.0 and a NaN without its payload. Padding and ids are as in
`gather_index_value_pairs`. Above a number of rows the engine falls back to that path; here the sum is always taken.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from refimpl.contract import UnsupportedInput, VocabShard
from refimpl.paths.peers import gates
from refimpl.paths.peers.gather_index_value_pairs import best_of_interleaved, index_value_pairs

ROW_WIDTH = 128


def sum_pair_slots(
    local_logits: torch.Tensor, shard: VocabShard, group: dist.ProcessGroup, d2t: torch.Tensor | None = None
) -> torch.Tensor:
    """Token ids from one SUM all-reduce: ``(batch, padded_size)`` logits give int64 ``(batch,)``.

    Raises UnsupportedInput for shards that are not of one width, and for more than 64 ranks.
    """
    gates.equal_shards(shard, "TensorRT-LLM")
    if 2 * shard.tp_size > ROW_WIDTH:
        raise UnsupportedInput(f"TensorRT-LLM's row of {ROW_WIDTH} words has no slots for tp_size {shard.tp_size}")
    row = torch.zeros((local_logits.shape[0], ROW_WIDTH), device=local_logits.device)
    row[:, 2 * shard.tp_rank : 2 * shard.tp_rank + 2] = index_value_pairs(local_logits, shard)
    dist.all_reduce(row, op=dist.ReduceOp.SUM, group=group)
    return best_of_interleaved(row[:, : 2 * shard.tp_size], d2t)


sum_pair_slots.tie_break = "draft_id"  # type: ignore[attr-defined]
