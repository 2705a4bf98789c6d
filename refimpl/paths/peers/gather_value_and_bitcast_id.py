"""LightLLM's draft reduction: three float32 words a rank, the maximum, the log-sum-exp and the id's bits.

After ModelTC/LightLLM pull request #1517 (merged August 2026; ``greedy_sample_local_stats`` and the combining kernel).
The id's 32 bits travel inside a float32 word, so it is never rounded: vLLM's packed top-k (pull request #55961) sends
ids alike. Shards begin at ``tp_rank * vocab_size // tp_size`` and have no padding; other layouts are refused.

The ranks are combined by a scan from -inf that takes a greater value, or an equal one of a lower id: a NaN compares as
neither, so it never wins, and a row that is all NaN keeps the scan's first id, 2**31 - 1. Inside a shard the kernel's
maximum ignores NaNs; which column it names beside one is not defined there, here it is the first greatest number. No
table is seen in the pull request.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.distributed as dist

from refimpl.contract import UnsupportedInput, VocabShard
from refimpl.paths.collectives import all_gather
from refimpl.paths.peers import gates

NO_ID = 2**31 - 1


def gather_value_and_bitcast_id(
    local_logits: torch.Tensor, shard: VocabShard, group: dist.ProcessGroup, d2t: torch.Tensor | None = None
) -> torch.Tensor:
    """Token ids from three float32 words a rank: ``(batch, padded_size)`` logits give int64 ``(batch,)``.

    Raises UnsupportedInput for a table, and for shards that do not begin at ``tp_rank * vocab_size // tp_size``.
    """
    gates.no_table(d2t, "LightLLM")
    cuts = [rank * shard.vocab_size // shard.tp_size for rank in range(shard.tp_size + 1)]
    if shard.bounds != tuple(pairwise(cuts)):
        raise UnsupportedInput("LightLLM begins shard r at r * vocab_size // tp_size; these begin elsewhere")
    logits = local_logits[:, : shard.num_real].float()
    words = torch.empty((3, logits.shape[0]), device=logits.device)
    words[1] = logits.logsumexp(dim=1)
    local_ids = words[2].view(torch.int32)
    if shard.num_real:
        numbers = logits.masked_fill(logits.isnan(), -torch.inf)
        words[0] = numbers.amax(dim=1)
        # The first greatest number: a NaN ranks below -inf.
        ranked = torch.where(logits.isnan(), 0, torch.where(numbers == words[0].unsqueeze(1), 2, 1))
        local_ids.copy_(ranked.argmax(dim=1))
        all_nan = logits.isnan().all(dim=1)
        words[0].masked_fill_(all_nan, torch.nan)
    else:
        words[0] = -torch.inf
        local_ids.zero_()
    gathered = all_gather(words, group)
    value = torch.full_like(words[0], -torch.inf)
    ids = torch.full_like(value, NO_ID, dtype=torch.int32)
    for rank in range(shard.tp_size):
        candidate = gathered[rank, 0]
        candidate_ids = gathered[rank, 2].view(torch.int32) + cuts[rank]
        wins = (candidate > value) | ((candidate == value) & (candidate_ids < ids))
        value, ids = torch.where(wins, candidate, value), torch.where(wins, candidate_ids, ids)
    return ids.long()
