"""b12x's argmax over PCIe: one unsigned 64 bit key a rank, zeros and NaNs made canonical.

After local-inference-lab/b12x pull request #217 (merged August 2026; b12x/comm/pcie/pcie_vocab_argmax.py), which
local-inference-lab/vllm #369 takes into vLLM. The key holds the order-preserving 32 bits above ``0xFFFFFFFF - id``;
both zeros are one value and every NaN is the top one. torch compares no unsigned integers and gloo moves none, so the
bits travel as int64 and the sign bit is flipped to compare them. As there, padding is refused; there is no table. Left
out: the kernel takes 8, 12 or 16 ranks and up to 8 rows of bfloat16, which its reduction does not depend on.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from refimpl.contract import VocabShard
from refimpl.paths.collectives import all_gather
from refimpl.paths.peers import gates

_LOW_32 = 0xFFFFFFFF
_SIGN_32 = 1 << 31
_SIGN_64 = -(1 << 63)


def unsigned_keys(values: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """The bits of unsigned 64 bit keys as int64, for ``values`` that float32 holds and int64 ``ids`` below 2**32."""
    values = values.float()
    patterns = values.view(torch.int32).long() & _LOW_32
    patterns = torch.where(patterns == _SIGN_32, 0, patterns)  # -0.0; by its bits, not by a comparison with 0.0
    ordered = torch.where(patterns >= _SIGN_32, _LOW_32 - patterns, patterns + _SIGN_32)
    ordered = torch.where(values.isnan(), _LOW_32, ordered)
    return (ordered << 32) | (_LOW_32 - ids)


def gather_unsigned_keys(
    local_logits: torch.Tensor, shard: VocabShard, group: dist.ProcessGroup, d2t: torch.Tensor | None = None
) -> torch.Tensor:
    """Token ids from one 64 bit key a rank: ``(batch, padded_size)`` logits give int64 ``(batch,)``.

    Raises UnsupportedInput for a table, and where tp_size does not divide the vocabulary.
    """
    gates.no_table(d2t, "b12x")
    gates.no_padding(shard, "b12x")
    values, columns = local_logits.max(dim=1)
    keys = all_gather(unsigned_keys(values, columns + shard.start), group)
    greatest = (keys ^ _SIGN_64).amax(dim=0) ^ _SIGN_64
    return _LOW_32 - (greatest & _LOW_32)
