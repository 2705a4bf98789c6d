"""SGLang's symmetric-memory argmax: one int64 key a rank, made of the float32 bits as they are.

After sgl-project/sglang pull request #30466 (open, July 2026; ``SGLANG_ENABLE_SPEC_DRAFT_DISTRIBUTED_ARGMAX``). The key
holds the order-preserving 32 bits above the complement of a 31 bit id; every rank stores its key to all others and
takes the greatest. The engine does that by a multicast store over NVLink, or keeps the full logits; here the keys are
gathered. Nothing is made canonical: across ranks 0.0 beats -0.0, a NaN with its sign bit set loses to
everything, and of several NaNs the greatest payload wins. Inside a shard the maximum is torch's. The token map is
applied by the caller.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from refimpl.contract import UnsupportedInput, VocabShard
from refimpl.paths.collectives import all_gather

MAX_ID = 2**31 - 1
_SIGN_BIT = 1 << 31
_ALL_BITS = (1 << 32) - 1


def raw_keys(values: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """int64 keys of float32-representable ``values`` and int64 ``ids`` in [0, MAX_ID], none of them negative."""
    patterns = values.float().view(torch.int32).long() & _ALL_BITS
    ordered = torch.where(patterns >= _SIGN_BIT, _ALL_BITS - patterns, patterns + _SIGN_BIT)
    return (ordered << 31) | (MAX_ID - ids)


def gather_raw_keys(
    local_logits: torch.Tensor, shard: VocabShard, group: dist.ProcessGroup, d2t: torch.Tensor | None = None
) -> torch.Tensor:
    """Token ids from one int64 key a rank: ``(batch, padded_size)`` logits give int64 ``(batch,)``.

    Raises UnsupportedInput where a draft id exceeds MAX_ID.
    """
    if shard.vocab_size - 1 > MAX_ID:
        raise UnsupportedInput(f"a vocabulary of {shard.vocab_size} has ids beyond 2**31 - 1, the key's last")
    if shard.num_real:
        values, columns = local_logits[:, : shard.num_real].max(dim=1)
        keys = raw_keys(values, columns + shard.start)
    else:
        keys = torch.full((local_logits.shape[0],), -1, dtype=torch.int64, device=local_logits.device)
    ids = MAX_ID - (all_gather(keys, group).amax(dim=0) & MAX_ID)
    return ids if d2t is None else ids + d2t[ids]


gather_raw_keys.tie_break = "draft_id"  # type: ignore[attr-defined]
