"""From every rank's candidate to the one token: trees, layouts, all-reduces."""

from __future__ import annotations

import torch
import torch.distributed as dist

from refimpl.paths.collectives import all_gather
from refimpl.verdict.kinds import Kind
from tests.mutants import mutant, parts

ANY_CANDIDATE = {Kind.WRONG_TIE, Kind.NAN_RULE, Kind.ALL_NEG_INF_ROW}


@mutant(kinds={Kind.RANK_DISAGREEMENT}, seen="TensorRT-LLM #16440 (local argmax of sharded logits)")
def no_reduction(local_logits, shard, group, d2t=None):
    """Each rank returns its own winner."""
    _, index = parts.shard_winner(local_logits, shard)
    return parts.to_targets(index, d2t)


@mutant(kinds={Kind.RANK_DISAGREEMENT}, seen="KsanaLLM greedy.cu (the result is on rank 0 only)")
def result_on_rank_zero_only(local_logits, shard, group, d2t=None):
    """Rank 0 alone has the reduced token, the others a buffer of zeros."""
    tokens = parts.finish(*parts.shard_winner(local_logits, shard), group, d2t)
    return tokens if shard.tp_rank == 0 else torch.zeros_like(tokens)


@mutant(kinds={Kind.WRONG_MAXIMUM, Kind.ID_OUT_OF_RANGE}, seen="tt-mlir #8623", also=ANY_CANDIDATE | {Kind.RAISED})
def sum_of_ids(local_logits, shard, group, d2t=None):
    """The ranks' ids are summed."""
    _, index = parts.shard_winner(local_logits, shard)
    index = index if shard.num_real else torch.zeros_like(index)
    dist.all_reduce(index, op=dist.ReduceOp.SUM, group=group)
    return parts.to_targets(index, d2t)


@mutant(
    kinds={Kind.WRONG_MAXIMUM, Kind.ID_OUT_OF_RANGE, Kind.WRONG_TIE},
    seen="reasoned",
    also={Kind.NAN_RULE, Kind.ALL_NEG_INF_ROW, Kind.RAISED},
)
def ids_of_tied_ranks_summed(local_logits, shard, group, d2t=None):
    """Ranks that do not hold the best value give 0 and the ids are summed: right unless ranks tie."""
    value, index = parts.shard_winner(local_logits, shard)
    holds = parts.tied(all_gather(value, group), 0)[shard.tp_rank]
    index = index.masked_fill(~holds, 0) if shard.num_real else torch.zeros_like(index)
    dist.all_reduce(index, op=dist.ReduceOp.SUM, group=group)
    return parts.to_targets(index, d2t)


@mutant(kinds={Kind.WRONG_MAXIMUM}, seen="reasoned", also=ANY_CANDIDATE)
def lowest_id_whatever_its_value(local_logits, shard, group, d2t=None):
    """The MIN of all ranks' ids, not of those that hold the best value."""
    _, index = parts.shard_winner(local_logits, shard)
    index = index if shard.num_real else torch.full_like(index, shard.vocab_size)
    dist.all_reduce(index, op=dist.ReduceOp.MIN, group=group)
    return parts.to_targets(index, d2t)


@mutant(kinds={Kind.NAN_RULE}, seen="reasoned (MAX of NaNs in gloo depends on their rank)")
def best_value_by_max_all_reduce(local_logits, shard, group, d2t=None):
    """The best value is a MAX all-reduce of raw values, which may lose a NaN; then MIN of the ids that hold it."""
    value, index = parts.shard_winner(local_logits, shard)
    peak = value.clone()
    dist.all_reduce(peak, op=dist.ReduceOp.MAX, group=group)
    holds = torch.where(peak.isnan(), value.isnan(), value == peak) & bool(shard.num_real)
    index = torch.where(holds, index, shard.vocab_size)
    dist.all_reduce(index, op=dist.ReduceOp.MIN, group=group)
    # Where no rank recognised the best value as its own, the last id stands in for one that a table has no row for.
    return parts.to_targets(index.clamp(max=shard.vocab_size - 1), d2t)


@mutant(
    kinds={Kind.WRONG_MAXIMUM},
    seen="KsanaLLM greedy.cu (tp_size 6 loses ranks 4 and 5)",
    tp_sizes=(3,),
    also={Kind.NAN_RULE, Kind.WRONG_TIE, Kind.ALL_NEG_INF_ROW},
)
def tree_loses_ranks_beyond_a_power_of_two(local_logits, shard, group, d2t=None):
    """The tree halves the number of ranks and forgets the odd one."""
    values, ids = parts.exchange(*parts.shard_winner(local_logits, shard), group)
    nodes = [(values[rank], ids[rank]) for rank in range(shard.tp_size)]
    while len(nodes) > 1:
        pairs = zip(nodes[::2], nodes[1::2], strict=False)
        nodes = [parts.match(left, right, parts.better) for left, right in pairs]
    return parts.to_targets(nodes[0][1], d2t)


@mutant(kinds={Kind.WRONG_MAXIMUM}, seen="vllm-ascend #16396", also=ANY_CANDIDATE)
def place_among_the_candidates(local_logits, shard, group, d2t=None):
    """The winner's place among the candidates is returned, not its id."""
    values, _ = parts.exchange(*parts.shard_winner(local_logits, shard), group)
    return parts.to_targets(values.argmax(dim=0).clamp(max=shard.vocab_size - 1), d2t)


@mutant(
    kinds={Kind.ROW_DEPENDENCE, Kind.WRONG_MAXIMUM},
    seen="reasoned ((tp, batch, 2) against (batch, tp, 2), hidden by a batch of one)",
    also=ANY_CANDIDATE,
)
def rank_and_row_axes_swapped(local_logits, shard, group, d2t=None):
    """The gathered (tp, batch, 2) is viewed as (batch, tp, 2)."""
    value, index = parts.shard_winner(local_logits, shard)
    values, ids = parts.pair_exchange(value, index, group)
    batch = value.shape[0]
    values, ids = values.reshape(batch, shard.tp_size), ids.reshape(batch, shard.tp_size)
    return parts.to_targets(parts.best(values.T, ids.T), d2t)


@mutant(
    kinds={Kind.ID_OUT_OF_RANGE, Kind.WRONG_MAXIMUM},
    seen="reasoned (engines differ: vLLM packs value first, TensorRT-LLM index first)",
    also=ANY_CANDIDATE | {Kind.WRONG_TARGET, Kind.RAISED},
)
def id_and_value_swapped(local_logits, shard, group, d2t=None):
    """The pair (id, value) is read as (value, id)."""
    value, index = parts.shard_winner(local_logits, shard)
    pairs = all_gather(torch.stack((index.double(), value.double()), dim=-1), group)
    return parts.to_targets(parts.best(pairs[..., 0], pairs[..., 1].long()), d2t)


@mutant(kinds={Kind.RANK_DISAGREEMENT}, seen="exllamav3 #233 (self-copy ignores the destination offset)")
def own_slot_without_its_offset(local_logits, shard, group, d2t=None):
    """A rank copies its own candidate to slot 0 of the gathered buffer, over rank 0's."""
    value, index = parts.shard_winner(local_logits, shard)
    values, ids = parts.exchange(value, index, group)
    values[shard.tp_rank] = parts.NEG_INF
    values[0], ids[0] = value, index
    return parts.to_targets(parts.best(values, ids), d2t)


@mutant(kinds={Kind.WRONG_MAXIMUM, Kind.ROW_DEPENDENCE}, seen="reasoned", also=ANY_CANDIDATE)
def remainder_rows_lost(local_logits, shard, group, d2t=None):
    """The rows are dealt out over the ranks to reduce; the remainder of batch / tp_size stays zero."""
    values, ids = parts.exchange(*parts.shard_winner(local_logits, shard), group)
    share = values.shape[1] // shard.tp_size
    mine = slice(shard.tp_rank * share, (shard.tp_rank + 1) * share)
    index = torch.zeros_like(ids[0])
    index[: share * shard.tp_size] = all_gather(parts.best(values[:, mine], ids[:, mine]), group).reshape(-1)
    return parts.to_targets(index, d2t)


@mutant(
    kinds={Kind.WRONG_MAXIMUM, Kind.ROW_DEPENDENCE},
    seen="reasoned (graphs captured up to 64 rows)",
    small="needs a batch above 64",
    also=ANY_CANDIDATE,
)
def rows_beyond_64_not_reduced(local_logits, shard, group, d2t=None):
    """Rows from the 65th on keep rank 0's candidate."""
    values, ids = parts.exchange(*parts.shard_winner(local_logits, shard), group)
    return parts.to_targets(torch.cat((parts.best(values, ids)[:64], ids[parts.owners(shard)[0]][64:])), d2t)
