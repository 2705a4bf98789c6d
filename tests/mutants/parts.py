"""Right building blocks. Composed without a bug they are right local reductions, for every layout of the contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from refimpl.contract import VocabShard
from refimpl.paths.collectives import all_gather

NEG_INF = float("-inf")
LOWEST_KEY = torch.iinfo(torch.int64).min
LOW_32 = 0xFFFFFFFF

# -- one shard --------------------------------------------------------------------------------------------------------


def mask(local_logits: Tensor, shard: VocabShard, fill: float = NEG_INF) -> Tensor:
    """Overwrite the padding in place."""
    local_logits[:, shard.num_real :] = fill
    return local_logits


def tied(values: Tensor, dim: int) -> Tensor:
    """Which entries are in the tied set: those equal to the greatest, or the NaNs where there are some."""
    peak = values.amax(dim, keepdim=True)
    return torch.where(peak.isnan(), values.isnan(), values == peak)


def first(columns: Tensor) -> Tensor:
    return columns.argmax(dim=-1)


def numbers_by(pick: Callable[[Tensor], Tensor], columns: Tensor) -> Tensor:
    """Another choice among numbers; a row with NaNs keeps the right one, the first NaN."""
    return torch.where(columns.isnan().any(dim=-1), first(columns), pick(columns))


def winner_of(columns: Tensor, start: int, pick: Callable[[Tensor], Tensor] = first) -> tuple[Tensor, Tensor]:
    local = pick(columns)
    return columns.gather(1, local.unsqueeze(1)).squeeze(1), local + start


def nothing(local_logits: Tensor, shard: VocabShard) -> tuple[Tensor, Tensor]:
    """The candidate of an empty shard: -inf and an id that exists.

    Where the lowest rank wins a tie it never wins wrongly: an empty first shard offers id 0, before any other there is
    a rank. Reductions with another order leave the empty shards out, see `owners`.
    """
    value = local_logits.new_full(local_logits.shape[:1], NEG_INF)
    return value, torch.full_like(value, min(shard.start, shard.vocab_size - 1), dtype=torch.int64)


def shard_winner(
    local_logits: Tensor, shard: VocabShard, pick: Callable[[Tensor], Tensor] = first
) -> tuple[Tensor, Tensor]:
    """Value and global id of the shard's greatest candidate."""
    if not shard.num_real:
        return nothing(local_logits, shard)
    return winner_of(local_logits[:, : shard.num_real], shard.start, pick)


# -- all ranks --------------------------------------------------------------------------------------------------------


def exchange(value: Tensor, index: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
    """Every rank's candidate in two gathers: ``(tp_size, batch)`` values and ids."""
    return all_gather(value, group), all_gather(index, group)


def pair_exchange(value: Tensor, index: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
    """The same in one gather: float64 holds every value of the three dtypes and every id below 2**53."""
    pairs = all_gather(torch.stack((value.double(), index.double()), dim=-1), group)
    return pairs[..., 0], pairs[..., 1].long()


def slot_exchange(
    value: Tensor, index: Tensor, shard: VocabShard, group: dist.ProcessGroup, slots: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The same by a SUM over slots that are zero but for the own one; -0.0 arrives as +0.0, which ties alike."""
    if slots is None:
        slots = torch.zeros((shard.tp_size, value.shape[0], 2), dtype=torch.float64, device=value.device)
    slots[shard.tp_rank] = torch.stack((value.double(), index.double()), dim=-1)
    dist.all_reduce(slots, op=dist.ReduceOp.SUM, group=group)
    return slots[..., 0], slots[..., 1].long()


def best(values: Tensor, ids: Tensor) -> Tensor:
    """The id of the greatest candidate: argmax takes the first, so the lowest rank wins a tie."""
    return ids.gather(0, values.argmax(dim=0, keepdim=True)).squeeze(0)


def owners(shard: VocabShard) -> list[int]:
    """The ranks that own columns."""
    return [rank for rank, (start, end) in enumerate(shard.bounds) if end > start]


def better(challenger: Tensor, holder: Tensor) -> Tensor:
    return (challenger > holder) | (challenger.isnan() & ~holder.isnan())


Beats = Callable[[Tensor, Tensor], Tensor]


def scan(values: Tensor, ids: Tensor, ranks: Sequence[int], beats: Beats = better) -> Tensor:
    """One rank after the other challenges the best so far."""
    value, index = values[ranks[0]], ids[ranks[0]]
    for rank in ranks[1:]:
        wins = beats(values[rank], value)
        value, index = torch.where(wins, values[rank], value), torch.where(wins, ids[rank], index)
    return index


def tree(values: Tensor, ids: Tensor, ranks: Sequence[int], beats: Beats = better) -> Tensor:
    """Neighbours meet in pairs; an odd one out goes to the next round."""
    nodes = [(values[rank], ids[rank]) for rank in ranks]
    while len(nodes) > 1:
        pairs = zip(nodes[::2], nodes[1::2], strict=False)
        odd = nodes[len(nodes) // 2 * 2 :]
        nodes = [match(left, right, beats) for left, right in pairs] + odd
    return nodes[0][1]


def match(holder: tuple[Tensor, Tensor], challenger: tuple[Tensor, Tensor], beats: Beats) -> tuple[Tensor, Tensor]:
    wins = beats(challenger[0], holder[0])
    return torch.where(wins, challenger[0], holder[0]), torch.where(wins, challenger[1], holder[1])


# -- keys: value and id in one integer, reduced by MAX ----------------------------------------------------------------


def float_bits(value: Tensor) -> Tensor:
    return value.float().view(torch.int32).long()


def in_order(bits: Tensor) -> Tensor:
    """Sign and magnitude to two's complement: signed integers in the order of the values."""
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def ordered(value: Tensor) -> Tensor:
    """The order of the values as int64 in ``[-2**31, 2**31)``: both zeros alike, every NaN on top."""
    # -0.0 + 0.0 is +0.0; nothing else changes.
    return in_order(float_bits(value.float() + 0.0)).masked_fill(value.isnan(), 0x7FFFFFFF)


def pack(order: Tensor, index: Tensor) -> Tensor:
    """The order above, the complement of the id below: the greatest key is the greatest value's lowest id."""
    return (order << 32) | (LOW_32 - index)


def unpack(key: Tensor) -> Tensor:
    return LOW_32 - (key & LOW_32)


def greatest_key(key: Tensor, shard: VocabShard, group: dist.ProcessGroup) -> Tensor:
    """MAX over the ranks; an empty shard offers less than any key."""
    key = key if shard.num_real else torch.full_like(key, LOWEST_KEY)
    dist.all_reduce(key, op=dist.ReduceOp.MAX, group=group)
    return key


# -- ids --------------------------------------------------------------------------------------------------------------


def to_targets(ids: Tensor, d2t: Tensor | None) -> Tensor:
    return ids if d2t is None else ids + d2t[ids]


def finish(value: Tensor, index: Tensor, group: dist.ProcessGroup, d2t: Tensor | None) -> Tensor:
    """All that comes after the shard's winner: right as it stands."""
    return to_targets(best(*exchange(value, index, group)), d2t)


def lowest_target(columns: Tensor, targets: Tensor) -> Tensor:
    """Among tied columns the one of the lowest target id."""
    return torch.where(tied(columns, -1), targets, torch.iinfo(torch.int64).max).argmin(dim=-1)


def best_target(values: Tensor, targets: Tensor) -> Tensor:
    """The lowest target id among tied candidates; a row of nothing but -inf gives the filler's id 0."""
    lowest = torch.where(tied(values, 0), targets, torch.iinfo(torch.int64).max).amin(dim=0)
    return lowest.masked_fill((values == NEG_INF).all(dim=0), 0)
