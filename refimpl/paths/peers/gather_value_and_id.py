"""vllm-ascend's reduce-sample: the value in its own dtype and an int64 id, in two gathers.

After ``greedy_sample`` (vllm-project/vllm-ascend, spec_decode/llm_base_proposer.py and sample/sampler.py at commit
182b75ea, August 2026; ``enable_reduce_sample``, pull request #8308). Logits are first cut to the shard's real columns,
and the id is ``local index + tp_rank * width`` with the width *after* the cut. On a shard that holds padding that width
is too small, so its ids are too low; nothing shows it where the vocabulary is a multiple of 64 and of tp_size. A shard
of nothing but padding has no column to take a maximum of: torch raises there, on that rank alone. The D2T table is
applied afterwards, as an offset.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from refimpl.contract import VocabShard
from refimpl.paths.collectives import all_gather
from refimpl.paths.peers import gates


def gather_value_and_id(
    local_logits: torch.Tensor, shard: VocabShard, group: dist.ProcessGroup, d2t: torch.Tensor | None = None
) -> torch.Tensor:
    """Token ids from two all-gathers: ``(batch, padded_size)`` logits give int64 ``(batch,)``.

    Raises UnsupportedInput for shards that are not of one width.
    """
    gates.equal_shards(shard, "vllm-ascend")
    logits = local_logits[:, : shard.num_real]
    values, columns = logits.max(dim=1)
    gathered_values = all_gather(values, group)
    gathered_ids = all_gather(columns + shard.tp_rank * logits.shape[1], group)
    best_rank = gathered_values.argmax(dim=0, keepdim=True)
    ids = gathered_ids.gather(0, best_rank).squeeze(0)
    return ids if d2t is None else ids + d2t[ids]


gather_value_and_id.tie_break = "draft_id"  # type: ignore[attr-defined]
