"""A local reduction that agrees with the full gather under every injective table, sorted or not.

Scattering into the target vocabulary breaks ties by target id. A reduction that finds the lowest draft id first and
maps it afterwards gives the same only under a strictly increasing table; some trainers write tables in frequency order
(NVIDIA Model-Optimizer's calibrate_frequent_vocab, NeMo Automodel's build_eagle3_token_mapping). Here targets compete
from the start: each shard offers the lowest target of its tied set, in a key of `refimpl.paths.reduce_max_key`.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from refimpl.contract import UnsupportedInput, VocabShard
from refimpl.paths.reduce_max_key import INFINITY, MAX_ID, NO_CANDIDATE, decode_ids, encode_keys, reduce_max_key


def target_tie_break(
    local_logits: torch.Tensor, shard: VocabShard, group: dist.ProcessGroup, d2t: torch.Tensor | None = None
) -> torch.Tensor:
    """Token ids as the full gather gives them: ``(batch, padded_size)`` logits on each rank give int64 ``(batch,)``.

    Padding columns are not read. With a table the lowest target of the tied set wins (of the NaNs in a row with NaNs),
    and a row that is all -inf gives filler id 0. One all-reduce of one int64 a row.

    Raises UnsupportedInput where an id to be returned exceeds MAX_ID or a target is negative; for that it reads the
    table, which on a GPU waits for the device: an engine would check once, at load.
    """
    if d2t is None:
        return reduce_max_key(local_logits, shard, group)
    targets = torch.arange(shard.vocab_size, device=d2t.device) + d2t
    lowest, highest = (int(bound) for bound in targets.aminmax())
    if lowest < 0 or highest > MAX_ID:
        raise UnsupportedInput(f"the targets {lowest} to {highest} do not all lie in 0 to 2**31 - 1")
    if shard.num_real:
        logits = local_logits[:, : shard.num_real]
        values = logits.amax(dim=1, keepdim=True)  # NaN where the row holds one
        tied = (logits == values) | logits.isnan()
        # In int32, half the memory; MAX_ID in place of the untied is safe because a tied set is never empty.
        tied_targets = torch.where(tied, targets[shard.start : shard.end].int(), MAX_ID)
        keys = encode_keys(values.squeeze(1), tied_targets.amin(dim=1).long())
    else:
        keys = local_logits.new_full(local_logits.shape[:1], NO_CANDIDATE, dtype=torch.int64)
    dist.all_reduce(keys, op=dist.ReduceOp.MAX, group=group)
    # In the scattered row a maximum of -inf ties with the filler, and id 0 is either filler or one of the tied targets.
    return decode_ids(keys).masked_fill(keys >> 32 == -INFINITY, 0)


target_tie_break.tie_break = "target_id"  # type: ignore[attr-defined]
