"""NaN, infinities, signed zeros, subnormals, and what stands in for them."""

from __future__ import annotations

import torch

from refimpl.verdict.kinds import Kind
from tests.mutants import mutant, parts


@mutant(kinds={Kind.NAN_RULE}, seen="KsanaLLM greedy.cu; TokenSpeed argmax kernel")
def nan_never_wins(local_logits, shard, group, d2t=None):
    """A NaN counts as -inf, in its shard and across the ranks."""
    columns = torch.where(local_logits.isnan(), parts.NEG_INF, local_logits)
    return parts.finish(*parts.shard_winner(columns, shard), group, d2t)


@mutant(kinds={Kind.NAN_RULE}, seen="TokenSpeed argmax kernel (strict scan)")
def strict_scan_skips_nan(local_logits, shard, group, d2t=None):
    """The scan over the ranks asks only for ``>``: a NaN wins on the first rank and nowhere else."""
    values, ids = parts.exchange(*parts.shard_winner(local_logits, shard), group)
    return parts.to_targets(parts.scan(values, ids, parts.owners(shard), torch.gt), d2t)


@mutant(
    kinds={Kind.NAN_RULE, Kind.ID_OUT_OF_RANGE},
    seen="SGLang #37106 (by reading: equality with the maximum)",
    also={Kind.RAISED},
)
def equality_finds_no_nan(local_logits, shard, group, d2t=None):
    """The lowest id whose value equals the maximum: where that is NaN there is none, and the filler id is returned."""
    values, ids = parts.exchange(*parts.shard_winner(local_logits, shard), group)
    peak = values.amax(dim=0)
    return parts.to_targets(torch.where(values == peak, ids, shard.vocab_size).amin(dim=0), d2t)


@mutant(kinds={Kind.NAN_RULE}, seen="reasoned (torch.nan_to_num)")
def nan_becomes_zero(local_logits, shard, group, d2t=None):
    """A NaN travels as 0.0."""
    value, index = parts.shard_winner(local_logits, shard)
    return parts.finish(torch.where(value.isnan(), 0.0, value), index, group, d2t)


@mutant(kinds={Kind.ROW_DEPENDENCE, Kind.WRONG_TIE}, seen="reasoned", also={Kind.ALL_NEG_INF_ROW})
def nan_elsewhere_changes_the_tie_rule(local_logits, shard, group, d2t=None):
    """A NaN in any row of the shard sends the whole batch to another kernel, where the last of equal numbers wins."""

    def last(columns):
        return columns.shape[1] - 1 - columns.flip(1).argmax(dim=1)

    def pick(columns):
        return parts.numbers_by(last, columns) if columns.isnan().any() else parts.first(columns)

    return parts.finish(*parts.shard_winner(local_logits, shard, pick), group, d2t)


@mutant(kinds={Kind.WRONG_MAXIMUM}, seen="reasoned (torch.nan_to_num)")
def infinities_become_finite(local_logits, shard, group, d2t=None):
    """Infinities travel as the greatest and lowest finite values, and tie with them."""
    value, index = parts.shard_winner(local_logits, shard)
    limits = torch.finfo(value.dtype)
    return parts.finish(value.clamp(limits.min, limits.max), index, group, d2t)


@mutant(kinds={Kind.WRONG_MAXIMUM}, seen="reasoned (kernels that flush to zero)")
def subnormals_become_zero(local_logits, shard, group, d2t=None):
    """Subnormal values travel as zero, and tie with it."""
    value, index = parts.shard_winner(local_logits, shard)
    value = torch.where(value.abs() < torch.finfo(value.dtype).tiny, 0.0, value)
    return parts.finish(value, index, group, d2t)


@mutant(kinds={Kind.ID_OUT_OF_RANGE, Kind.ALL_NEG_INF_ROW}, seen="TokenSpeed argmax kernel (sentinel)")
def sentinel_id_of_an_all_neg_inf_row(local_logits, shard, group, d2t=None):
    """The scan begins at -inf with the id -1, which no -inf replaces."""
    values, ids = parts.exchange(*parts.shard_winner(local_logits, shard), group)
    values = torch.cat((torch.full_like(values[:1], parts.NEG_INF), values))
    ids = torch.cat((torch.full_like(ids[:1], -1), ids))
    index = parts.scan(values, ids, range(len(ids)))
    return torch.where(index < 0, index, parts.to_targets(index.clamp(min=0), d2t))


@mutant(
    kinds={Kind.WRONG_MAXIMUM},
    seen="mirage #751 (zeros win where all logits are negative)",
    also={Kind.WRONG_TIE},
)
def zero_initialised_best(local_logits, shard, group, d2t=None):
    """The scan begins at 0.0 with the id 0, which no negative value replaces."""
    values, ids = parts.exchange(*parts.shard_winner(local_logits, shard), group)
    values = torch.cat((torch.zeros_like(values[:1]), values))
    ids = torch.cat((torch.zeros_like(ids[:1]), ids))
    return parts.to_targets(parts.scan(values, ids, range(len(ids))), d2t)


def _empty_shard_sends(fill, local_logits, shard, group, d2t):
    value, index = parts.shard_winner(local_logits, shard)
    if not shard.num_real:
        value, index = torch.full_like(value, fill), torch.full_like(index, shard.start)
    return parts.finish(value, index, group, d2t)


@mutant(
    kinds={Kind.ID_OUT_OF_RANGE, Kind.WRONG_MAXIMUM},
    seen="reasoned",
    also={Kind.ALL_NEG_INF_ROW, Kind.WRONG_TIE, Kind.RAISED},
)
def empty_shard_sends_a_finite_value(local_logits, shard, group, d2t=None):
    """An empty shard sends -1e4, which beats a row of smaller logits."""
    return _empty_shard_sends(-1e4, local_logits, shard, group, d2t)


@mutant(
    kinds={Kind.ID_OUT_OF_RANGE, Kind.ALL_NEG_INF_ROW},
    seen="SGLang and TokenSpeed DFlash draft heads",
    also={Kind.WRONG_MAXIMUM, Kind.WRONG_TIE, Kind.RAISED},
)
def empty_shard_sends_the_lowest_finite_value(local_logits, shard, group, d2t=None):
    """An empty shard sends the dtype's lowest finite value, which beats a row of -inf."""
    return _empty_shard_sends(torch.finfo(local_logits.dtype).min, local_logits, shard, group, d2t)
