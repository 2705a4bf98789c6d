"""From a shard's column to the id of the vocabulary."""

from __future__ import annotations

import torch
import torch.distributed as dist

from refimpl.verdict.kinds import Kind
from tests.mutants import mutant, parts

# A wrong offset may name any column, or none; and where there is a table, one past its end raises on every rank.
ANY_ID = {Kind.WRONG_TIE, Kind.NAN_RULE, Kind.ALL_NEG_INF_ROW, Kind.RAISED}


def _local_winner(local_logits, shard):
    value, index = parts.shard_winner(local_logits, shard)
    return value, index - shard.start if shard.num_real else torch.zeros_like(index)


@mutant(kinds={Kind.WRONG_MAXIMUM}, seen="reasoned", also=ANY_ID)
def offset_missing(local_logits, shard, group, d2t=None):
    """Column numbers of the shard are returned as ids."""
    return parts.finish(*_local_winner(local_logits, shard), group, d2t)


@mutant(
    kinds={Kind.WRONG_MAXIMUM, Kind.ID_OUT_OF_RANGE},
    seen="vllm-ascend enable_reduce_sample (padded last rank)",
    also=ANY_ID,
)
def offset_by_the_own_real_width(local_logits, shard, group, d2t=None):
    """The offset is the rank times the rank's own number of real columns."""
    value, local = _local_winner(local_logits, shard)
    return parts.finish(value, local + shard.tp_rank * shard.num_real, group, d2t)


@mutant(
    kinds={Kind.WRONG_MAXIMUM, Kind.ID_OUT_OF_RANGE},
    seen="tt-metal #38320 (offsets padded after sharding)",
    also=ANY_ID,
)
def offset_by_the_padded_width(local_logits, shard, group, d2t=None):
    """The offset is the rank times the padded width."""
    value, local = _local_winner(local_logits, shard)
    return parts.finish(value, local + shard.tp_rank * shard.padded_size, group, d2t)


@mutant(
    kinds={Kind.WRONG_MAXIMUM, Kind.ID_OUT_OF_RANGE},
    seen="neuronx_distributed argmax (offsets in steps of the even shard)",
    also=ANY_ID,
)
def offset_by_the_even_split(local_logits, shard, group, d2t=None):
    """The offset is the rank times the even share of the vocabulary, rounded up."""
    value, local = _local_winner(local_logits, shard)
    return parts.finish(value, local + shard.tp_rank * -(-shard.vocab_size // shard.tp_size), group, d2t)


@mutant(
    kinds={Kind.WRONG_MAXIMUM, Kind.ID_OUT_OF_RANGE},
    seen="reasoned (tp_rank = rank % tp_size)",
    also=ANY_ID,
    needs_subgroup=True,
)
def offset_by_the_rank_in_the_world(local_logits, shard, group, d2t=None):
    """The offset is that of the world's rank modulo tp_size, which is another rank where the group begins off a
    multiple of tp_size."""
    value, local = _local_winner(local_logits, shard)
    return parts.finish(value, local + shard.bounds[dist.get_rank() % shard.tp_size][0], group, d2t)


@mutant(
    kinds={Kind.ID_OUT_OF_RANGE, Kind.WRONG_MAXIMUM},
    seen="reasoned",
    small="needs ids from 32768 on",
    also=ANY_ID | {Kind.WRONG_TARGET},
)
def ids_in_int16(local_logits, shard, group, d2t=None):
    """Ids are computed in int16 and wrap from 32768 on."""
    value, index = parts.shard_winner(local_logits, shard)
    return parts.finish(value, index.to(torch.int16).long(), group, d2t)


@mutant(
    kinds={Kind.WRONG_MAXIMUM, Kind.ROW_DEPENDENCE},
    seen="reasoned (reviews ask for int64 row offsets)",
    small="needs batch x padded width beyond 32768",
    also={Kind.WRONG_TIE, Kind.NAN_RULE, Kind.ALL_NEG_INF_ROW},
)
def cell_numbers_in_int16(local_logits, shard, group, d2t=None):
    """The winner's value is read at ``row * width + column`` computed in int16: from 32768 on another cell's."""
    value, local = parts.winner_of(parts.mask(local_logits, shard), 0)
    rows = torch.arange(local_logits.shape[0], device=local.device)
    cell = (rows * shard.padded_size + local).to(torch.int16).long()
    value = local_logits.reshape(-1)[cell] if shard.num_real else value
    return parts.finish(value, local + shard.start, group, d2t)
