"""The local reduction vLLM ships: one float32 (value, id) pair a rank and row, one all-gather, first best rank wins.

Follows LogitsProcessor.get_top_tokens (vLLM PR #34049; the D2T mapping after the reduction came with #39419), but for
its early return at tp_size 1. The lowest id of a tie wins because shards are contiguous and in rank order and argmax
takes the first of equals, on the shard and over the ranks; the same holds for the first NaN. A shard without real
columns sends -inf and the id at which it starts. On a row that is all -inf rank 0 wins, and its id is 0 whether its
shard is empty or not; on any other row -inf wins nothing. So what an empty shard sends is never a wrong answer.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from refimpl.contract import UnsupportedInput, VocabShard
from refimpl.paths.collectives import all_gather

# float32 has a 24 bit significand: 2**24 + 1 is the first integer it rounds.
MAX_ID = 2**24


def gather_pairs(
    local_logits: torch.Tensor, shard: VocabShard, group: dist.ProcessGroup, d2t: torch.Tensor | None = None
) -> torch.Tensor:
    """Token ids from one pair a rank: ``(batch, padded_size)`` logits on each rank give int64 ``(batch,)``.

    Padding columns are overwritten with -inf. Ties go to the lowest draft id, which is then mapped; so under a table
    that is not strictly increasing some ties differ from the full gather's.

    Raises UnsupportedInput where float32 cannot hold every draft id.
    """
    if shard.vocab_size - 1 > MAX_ID:
        raise UnsupportedInput(f"a vocabulary of {shard.vocab_size} has ids beyond 2**24, which float32 rounds")
    local_logits[:, shard.num_real :] = -torch.inf
    values, columns = local_logits.max(dim=1)
    pairs = torch.stack([values.float(), (columns + shard.start).float()], dim=1)
    gathered = all_gather(pairs, group)
    best_rank = gathered[:, :, 0].argmax(dim=0, keepdim=True)
    ids = gathered[:, :, 1].gather(0, best_rank).squeeze(0).long()
    return ids if d2t is None else ids + d2t[ids]


gather_pairs.tie_break = "draft_id"  # type: ignore[attr-defined]
