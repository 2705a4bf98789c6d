"""What travels: values and ids in too narrow a format."""

from __future__ import annotations

import torch

from refimpl.paths.collectives import all_gather
from refimpl.verdict.kinds import Kind
from tests.mutants import mutant, parts

ROUNDED_ID = {Kind.WRONG_TIE, Kind.NAN_RULE, Kind.ALL_NEG_INF_ROW, Kind.ID_OUT_OF_RANGE, Kind.RAISED}


def _ids_through(dtype, local_logits, shard, group, d2t):
    value, index = parts.shard_winner(local_logits, shard)
    values, ids = parts.exchange(value, index.to(dtype), group)
    return parts.to_targets(parts.best(values, ids).long(), d2t)


@mutant(kinds={Kind.WRONG_MAXIMUM}, seen="tt-xla #4329", small="ids are exact up to 256", also=ROUNDED_ID)
def ids_through_bfloat16(local_logits, shard, group, d2t=None):
    """Ids travel as bfloat16 and are rounded from 257 on."""
    return _ids_through(torch.bfloat16, local_logits, shard, group, d2t)


@mutant(kinds={Kind.WRONG_MAXIMUM}, seen="reasoned", small="ids are exact up to 2048", also=ROUNDED_ID)
def ids_through_float16(local_logits, shard, group, d2t=None):
    """Ids travel as float16 and are rounded from 2049 on, infinite from 65520 on."""
    return _ids_through(torch.float16, local_logits, shard, group, d2t)


@mutant(
    kinds={Kind.WRONG_MAXIMUM},
    seen="vLLM get_top_tokens (float32 pairs)",
    small="ids are exact up to 16777216",
    also=ROUNDED_ID,
)
def ids_through_float32(local_logits, shard, group, d2t=None):
    """Ids travel as float32 and are rounded from 16777217 on."""
    return _ids_through(torch.float32, local_logits, shard, group, d2t)


@mutant(
    kinds={Kind.WRONG_TARGET, Kind.WRONG_MAXIMUM},
    seen="reasoned",
    small="target ids are exact up to 16777216, which a table of any length can pass",
    also={Kind.WRONG_TIE, Kind.NAN_RULE, Kind.ALL_NEG_INF_ROW, Kind.ID_OUT_OF_RANGE},
    needs_table=True,
)
def target_ids_through_float32(local_logits, shard, group, d2t=None):
    """Ids are mapped before they travel as float32, which rounds target ids from 16777217 on."""
    value, index = parts.shard_winner(local_logits, shard)
    values, ids = parts.exchange(value, parts.to_targets(index, d2t).float(), group)
    return parts.best(values, ids).long()


@mutant(kinds={Kind.WRONG_MAXIMUM}, seen="reasoned", dtypes=("float32", "float16"))
def value_narrowed_before_the_exchange(local_logits, shard, group, d2t=None):
    """Values travel as bfloat16: near values of different ranks become ties."""
    value, index = parts.shard_winner(local_logits, shard)
    return parts.finish(value.bfloat16(), index, group, d2t)


@mutant(kinds={Kind.WRONG_MAXIMUM}, seen="reasoned", dtypes=("float32", "bfloat16"))
def value_through_float16(local_logits, shard, group, d2t=None):
    """Values travel as float16: from 65520 on they are infinite, below 2**-25 zero."""
    value, index = parts.shard_winner(local_logits, shard)
    return parts.finish(value.half(), index, group, d2t)


@mutant(
    kinds={Kind.WRONG_MAXIMUM},
    seen="reasoned (a bfloat16 kernel on float32 logits)",
    also={Kind.WRONG_TIE},
    dtypes=("float32", "float16"),
)
def columns_compared_as_bfloat16(local_logits, shard, group, d2t=None):
    """Inside a shard the columns are compared after rounding to bfloat16."""
    value, index = parts.shard_winner(local_logits, shard, lambda columns: columns.bfloat16().argmax(dim=-1))
    return parts.finish(value, index, group, d2t)


@mutant(kinds={Kind.RANK_DISAGREEMENT}, seen="reasoned", dtypes=("float32", "float16"))
def own_value_unrounded(local_logits, shard, group, d2t=None):
    """Each rank puts its own exact value beside the others' values rounded to bfloat16."""
    value, index = parts.shard_winner(local_logits, shard)
    values, ids = parts.exchange(value.bfloat16(), index, group)
    values = values.float()
    values[shard.tp_rank] = value.float()
    return parts.to_targets(parts.best(values, ids), d2t)


@mutant(
    kinds={Kind.ID_OUT_OF_RANGE},
    seen="reasoned",
    also={Kind.WRONG_MAXIMUM, Kind.NAN_RULE, Kind.WRONG_TIE, Kind.ALL_NEG_INF_ROW, Kind.RAISED},
)
def keys_through_float64(local_logits, shard, group, d2t=None):
    """A key of 64 bits travels as float64, which keeps the upper 53."""
    value, index = parts.shard_winner(local_logits, shard)
    key = parts.pack(parts.ordered(value), index)
    keys = all_gather(key if shard.num_real else torch.full_like(key, parts.LOWEST_KEY), group)
    return parts.to_targets(parts.unpack(keys.double().amax(dim=0).long()), d2t)
