"""Ranks that do not issue the same collectives, in the same order, over the same group."""

from __future__ import annotations

import torch
import torch.distributed as dist

from refimpl.paths.collectives import all_gather
from refimpl.verdict.kinds import Kind
from tests.mutants import mutant, parts

# What a mismatch turns into without a debug level: the rank that receives too much aborts, or waits, or is fooled.
MISMATCHED = {
    Kind.COLLECTIVE_MISMATCH,
    Kind.DIED,
    Kind.HANG,
    Kind.RAISED,
    Kind.RAISED_ON_SOME_RANKS,
    Kind.RANK_DISAGREEMENT,
    Kind.WRONG_MAXIMUM,
    Kind.WRONG_TIE,
    Kind.NAN_RULE,
    Kind.ALL_NEG_INF_ROW,
    Kind.ID_OUT_OF_RANGE,
}


def _is_last(shard):
    return shard.tp_rank == shard.tp_size - 1


@mutant(kinds={Kind.HANG}, seen="vllm-ascend #15079 (the wrong group)", also=MISMATCHED, needs_subgroup=True)
def reduces_over_the_world(local_logits, shard, group, d2t=None):
    """The candidates are gathered over the world, not over the group."""
    return parts.finish(*parts.shard_winner(local_logits, shard), dist.group.WORLD, d2t)


@mutant(
    kinds={Kind.COLLECTIVE_MISMATCH, Kind.RANK_DISAGREEMENT},
    seen="reasoned (gloo pairs equal sizes silently)",
    also=MISMATCHED,
)
def gathers_swapped_on_one_rank(local_logits, shard, group, d2t=None):
    """The last rank gathers ids before values; both are of 8 bytes."""
    value, index = parts.shard_winner(local_logits, shard)
    if _is_last(shard):
        ids, values = all_gather(index, group), all_gather(value.double(), group)
    else:
        values, ids = all_gather(value.double(), group), all_gather(index, group)
    return parts.to_targets(parts.best(values, ids), d2t)


@mutant(
    kinds={Kind.COLLECTIVE_MISMATCH, Kind.RANK_DISAGREEMENT},
    seen="reasoned (gloo reinterprets equal sizes silently)",
    also=MISMATCHED,
)
def payload_dtype_differs_on_one_rank(local_logits, shard, group, d2t=None):
    """The last rank sends its ids as float64, the others as int64."""
    value, index = parts.shard_winner(local_logits, shard)
    values, ids = parts.exchange(value, index.double() if _is_last(shard) else index, group)
    return parts.to_targets(parts.best(values, ids).long(), d2t)


@mutant(kinds={Kind.COLLECTIVE_MISMATCH, Kind.DIED}, seen="reasoned", also=MISMATCHED)
def payload_size_differs_on_one_rank(local_logits, shard, group, d2t=None):
    """The last rank sends its ids as int32, the others as int64."""
    value, index = parts.shard_winner(local_logits, shard)
    values, ids = parts.exchange(value, index.int() if _is_last(shard) else index, group)
    return parts.to_targets(parts.best(values, ids).long(), d2t)


@mutant(
    kinds={Kind.RANK_DISAGREEMENT, Kind.WRONG_MAXIMUM, Kind.ROW_DEPENDENCE},
    seen="reasoned (no debug level of torch compares reduce operations)",
    also=MISMATCHED,
)
def reduce_operation_differs_on_one_rank(local_logits, shard, group, d2t=None):
    """Rank 0 asks for the MIN of the keys, the others for the MAX; which rank reduces a row is the backend's choice."""
    value, index = parts.shard_winner(local_logits, shard)
    key = parts.pack(parts.ordered(value), index)
    key = key if shard.num_real else torch.full_like(key, parts.LOWEST_KEY)
    dist.all_reduce(key, op=dist.ReduceOp.MAX if shard.tp_rank else dist.ReduceOp.MIN, group=group)
    return parts.to_targets(parts.unpack(key), d2t)


@mutant(
    kinds={Kind.COLLECTIVE_MISMATCH, Kind.DIED, Kind.HANG},
    seen="TokenSpeed #1399; vLLM #49027",
    also=MISMATCHED,
)
def one_rank_takes_the_full_gather(local_logits, shard, group, d2t=None):
    """A rank whose own shard has padding takes the full gather, the others exchange candidates."""
    value, index = parts.shard_winner(local_logits, shard)
    if not shard.num_padding:
        return parts.finish(value, index, group, d2t)
    shards = all_gather(local_logits, group)
    row = torch.cat([shards[rank, :, : end - start] for rank, (start, end) in enumerate(shard.bounds)], dim=1)
    return parts.to_targets(row.argmax(dim=1), d2t)


@mutant(
    kinds={Kind.HANG, Kind.COLLECTIVE_MISMATCH},
    seen="SGLang DFlash head under data-parallel attention (idle ranks skip the gather)",
    also=MISMATCHED,
)
def empty_shard_returns_early(local_logits, shard, group, d2t=None):
    """A rank without real columns returns before the exchange."""
    value, index = parts.shard_winner(local_logits, shard)
    if not shard.num_real:
        return torch.zeros_like(index)
    return parts.finish(value, index, group, d2t)


@mutant(kinds={Kind.HANG, Kind.COLLECTIVE_MISMATCH}, seen="reasoned", also=MISMATCHED)
def sure_winner_returns_early(local_logits, shard, group, d2t=None):
    """A rank that holds +inf in every row, which nothing but a NaN beats, returns before the exchange."""
    value, index = parts.shard_winner(local_logits, shard)
    if len(value) and (value == float("inf")).all():
        return parts.to_targets(index, d2t)
    return parts.finish(value, index, group, d2t)


@mutant(kinds={Kind.HANG, Kind.COLLECTIVE_MISMATCH}, seen="reasoned", also=MISMATCHED)
def extra_collective_on_one_rank(local_logits, shard, group, d2t=None):
    """Rank 0 issues one collective more, and waits for it."""
    tokens = parts.finish(*parts.shard_winner(local_logits, shard), group, d2t)
    if shard.tp_rank == 0:
        all_gather(tokens, group)
    return tokens


_pending: list[dist.Work] = []


@mutant(kinds={Kind.COLLECTIVE_MISMATCH}, seen="reasoned", also=MISMATCHED)
def asynchronous_extra_collective(local_logits, shard, group, d2t=None):
    """Rank 0 issues one collective more without waiting: this call is right, the next one is paired with it."""
    tokens = parts.finish(*parts.shard_winner(local_logits, shard), group, d2t)
    if shard.tp_rank == 0:
        _pending.append(dist.all_reduce(tokens.clone(), group=group, async_op=True))
    return tokens


@mutant(
    kinds={Kind.WRONG_MAXIMUM, Kind.RANK_DISAGREEMENT, Kind.NONDETERMINISTIC},
    seen="reasoned",
    small="a race, which a smaller case may win",
    also={Kind.NAN_RULE, Kind.WRONG_TIE, Kind.ALL_NEG_INF_ROW},
)
def gathered_buffer_read_too_soon(local_logits, shard, group, d2t=None):
    """The slots are read before the asynchronous collective that fills them has ended."""
    value, index = parts.shard_winner(local_logits, shard)
    slots = torch.zeros((shard.tp_size, value.shape[0], 2), dtype=torch.float64, device=value.device)
    slots[shard.tp_rank] = torch.stack((value.double(), index.double()), dim=-1)
    work = dist.all_reduce(slots, group=group, async_op=True)
    pairs = slots.clone()
    work.wait()
    return parts.to_targets(parts.best(pairs[..., 0], pairs[..., 1].long()), d2t)
