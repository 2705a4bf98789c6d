"""SGLang's opt-in path for EAGLE and NEXTN drafts: float32 (value, id) pairs, and the lowest id of the greatest value.

After sgl-project/sglang pull request #37106 (open, August 2026; ``--speculative-draft-local-argmax``). Padding is left
out before the shard's argmax, a shard without real columns sends -inf with id 2**24 - 1, and of equal maxima the
smallest id is chosen, whatever the order of ranks. Refused as there: a vocabulary of 2**24 ids or more, and a token
map. The thread does not say what a NaN does. Written as "ids whose value equals the maximum", the selection finds
nothing equal to a NaN; so it is here, and the sentinel comes out. The gates on row count, device and modes are left
out: they choose between two right paths.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from refimpl.contract import UnsupportedInput, VocabShard
from refimpl.paths.collectives import all_gather
from refimpl.paths.peers import gates

SENTINEL = 2**24 - 1  # what an empty shard sends; no id of a vocabulary that passes the gate is greater


def gather_pairs_lowest_id(
    local_logits: torch.Tensor, shard: VocabShard, group: dist.ProcessGroup, d2t: torch.Tensor | None = None
) -> torch.Tensor:
    """Token ids from one float32 pair a rank: ``(batch, padded_size)`` logits give int64 ``(batch,)``.

    Raises UnsupportedInput for a table, and for a vocabulary of 2**24 ids or more.
    """
    gates.no_table(d2t, "SGLang")
    if shard.vocab_size >= 2**24:
        raise UnsupportedInput(f"SGLang gates out the vocabulary of {shard.vocab_size}: 2**24 ids or more")
    if shard.num_real:
        values, columns = local_logits[:, : shard.num_real].max(dim=1)
        pairs = torch.stack([values.float(), (columns + shard.start).float()], dim=1)
    else:
        pairs = torch.tensor([-torch.inf, SENTINEL], device=local_logits.device).repeat(local_logits.shape[0], 1)
    gathered = all_gather(pairs, group)
    values, ids = gathered[..., 0], gathered[..., 1].long()
    return ids.masked_fill(values != values.amax(dim=0), SENTINEL).amin(dim=0)
