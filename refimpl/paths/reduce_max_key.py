"""A local reduction by one integer: value and id packed into an int64 key, one all-reduce MAX.

The high 32 bits hold the value so that keys compare as values do, the low 32 bits the id counted downwards, so that of
equal values the lowest id has the greatest key. Integers have neither NaN nor signed zero and MAX is commutative:
nothing depends on the order in which ranks are combined. Packed keys elsewhere differ from torch.argmax on -0.0 and NaN
where they take the bits as they are (SGLang #30466); here both zeros are one value and all NaNs are one top value.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from refimpl.contract import UnsupportedInput, VocabShard

MAX_ID = 2**31 - 1
NO_CANDIDATE = -(2**63)  # below the key of every value and id: what a shard without real columns contributes

_SIGN_BIT = -(2**31)
INFINITY = 0x7F800000  # what the high bits of the key of +inf are; those of -inf are its negative
_NAN = 0x7FC00000


def encode_keys(values: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Pack float32, bfloat16 or float16 ``values`` and int64 ``ids`` in [0, MAX_ID], of one shape, into int64 keys.

    Keys order by value first, NaN above +inf and -0.0 equal to 0.0, then by id, the lower id above.
    """
    # Only integer operations see the bits: under flush-to-zero a float comparison takes subnormals for zeros.
    patterns = values.float().view(torch.int32)
    # float32 is sign and magnitude; as two's complement integers both zeros coincide and the rest keeps its order.
    ordinals = torch.where(patterns < 0, _SIGN_BIT - patterns, patterns)
    ordinals = torch.where(ordinals.abs() > INFINITY, _NAN, ordinals)
    return (ordinals.long() << 32) | (MAX_ID - ids)


def decode_ids(keys: torch.Tensor) -> torch.Tensor:
    """The int64 ids in ``keys``, of the same shape. Not defined for NO_CANDIDATE."""
    return MAX_ID - (keys & 0xFFFFFFFF)


def reduce_max_key(
    local_logits: torch.Tensor, shard: VocabShard, group: dist.ProcessGroup, d2t: torch.Tensor | None = None
) -> torch.Tensor:
    """Token ids from one key a row: ``(batch, padded_size)`` logits on each rank give int64 ``(batch,)``.

    Padding columns are not read. Ties go to the lowest draft id, which is then mapped; so under a table that is not
    strictly increasing some ties differ from the full gather's.

    Raises UnsupportedInput where a draft id exceeds MAX_ID.
    """
    if shard.vocab_size - 1 > MAX_ID:
        raise UnsupportedInput(f"a vocabulary of {shard.vocab_size} has ids beyond 2**31 - 1, the key's last")
    if shard.num_real:
        values, columns = local_logits[:, : shard.num_real].max(dim=1)
        keys = encode_keys(values, columns + shard.start)
    else:
        keys = local_logits.new_full(local_logits.shape[:1], NO_CANDIDATE, dtype=torch.int64)
    dist.all_reduce(keys, op=dist.ReduceOp.MAX, group=group)
    ids = decode_ids(keys)
    return ids if d2t is None else ids + d2t[ids]


reduce_max_key.tie_break = "draft_id"  # type: ignore[attr-defined]
