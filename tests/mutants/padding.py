"""Which columns of the padded shard take part."""

from __future__ import annotations

import torch

from refimpl.verdict.kinds import Kind
from tests.mutants import mutant, parts

# An id past the end does not fit into a table: where there is one, every rank raises.
PADDING_ID = {Kind.ID_OUT_OF_RANGE, Kind.RAISED}


@mutant(kinds={Kind.PADDING_RETURNED}, seen="nanotron GreedySampler; neuronx_distributed argmax", also=PADDING_ID)
def padding_unmasked(local_logits, shard, group, d2t=None):
    """The argmax runs over the padding too."""
    return parts.finish(*parts.winner_of(local_logits, shard.start), group, d2t)


@mutant(
    kinds={Kind.PADDING_RETURNED},
    seen="reasoned (layouts whose padding is all at the end of the vocabulary)",
    also=PADDING_ID,
)
def padding_masked_on_the_last_rank_only(local_logits, shard, group, d2t=None):
    """Only the last rank masks its padding."""
    if shard.tp_rank == shard.tp_size - 1:
        parts.mask(local_logits, shard)
    return parts.finish(*parts.winner_of(local_logits, shard.start), group, d2t)


@mutant(kinds={Kind.PADDING_RETURNED}, seen="SGLang #35872 (unmasked vector tail, vocabulary 151666)", also=PADDING_ID)
def vector_tail_unmasked(local_logits, shard, group, d2t=None):
    """The mask begins at the next multiple of 8 columns."""
    local_logits[:, -(-shard.num_real // 8) * 8 :] = parts.NEG_INF
    return parts.finish(*parts.winner_of(local_logits, shard.start), group, d2t)


@mutant(
    kinds={Kind.WRONG_MAXIMUM, Kind.ID_OUT_OF_RANGE},
    seen="mirage #755 (padding set to -1e4)",
    also={Kind.ALL_NEG_INF_ROW, Kind.WRONG_TIE, Kind.RAISED},
)
def padding_masked_with_a_finite_value(local_logits, shard, group, d2t=None):
    """The padding is masked with -1e4, which beats a row of smaller logits."""
    parts.mask(local_logits, shard, fill=-1e4)
    return parts.finish(*parts.winner_of(local_logits, shard.start), group, d2t)


@mutant(
    kinds={Kind.ALL_NEG_INF_ROW, Kind.ID_OUT_OF_RANGE},
    seen="vLLM gemma4_mtp (finfo.min as filler)",
    also={Kind.WRONG_MAXIMUM, Kind.WRONG_TIE, Kind.RAISED},
)
def padding_masked_with_the_lowest_finite_value(local_logits, shard, group, d2t=None):
    """The padding is masked with the dtype's lowest finite value, which beats -inf."""
    parts.mask(local_logits, shard, fill=torch.finfo(local_logits.dtype).min)
    return parts.finish(*parts.winner_of(local_logits, shard.start), group, d2t)


@mutant(
    kinds={Kind.WRONG_MAXIMUM, Kind.ID_OUT_OF_RANGE},
    seen="mirage #751 (zero rows of the padded head win where all logits are negative)",
    also={Kind.ALL_NEG_INF_ROW, Kind.WRONG_TIE, Kind.RAISED},
)
def padding_filled_with_zero(local_logits, shard, group, d2t=None):
    """The padding is zero, which beats a row of negative logits."""
    parts.mask(local_logits, shard, fill=0.0)
    return parts.finish(*parts.winner_of(local_logits, shard.start), group, d2t)


@mutant(kinds={Kind.WRONG_MAXIMUM}, seen="reasoned", also={Kind.NAN_RULE, Kind.WRONG_TIE})
def mask_from_minus_zero(local_logits, shard, group, d2t=None):
    """The mask is the last ``num_padding`` columns written ``[-num_padding:]``: all of them where there is none."""
    logits = local_logits.clone()
    logits[:, -shard.num_padding :] = parts.NEG_INF
    return parts.finish(*parts.winner_of(logits, shard.start), group, d2t)


@mutant(kinds={Kind.PADDING_RETURNED}, seen="reasoned")
def shard_discarded_where_padding_wins(local_logits, shard, group, d2t=None):
    """A shard whose unmasked winner is padding offers nothing, not even its best real column."""
    value, index = parts.winner_of(local_logits, shard.start)
    is_padding = index >= shard.end
    value = value.masked_fill(is_padding, parts.NEG_INF)
    return parts.finish(value, index.masked_fill(is_padding, shard.start), group, d2t)


@mutant(
    kinds={Kind.WRONG_MAXIMUM, Kind.ROW_DEPENDENCE},
    seen="KsanaLLM greedy.cu (row stride)",
    also={Kind.NAN_RULE, Kind.WRONG_TIE, Kind.ALL_NEG_INF_ROW},
)
def rows_at_the_real_width(local_logits, shard, group, d2t=None):
    """Rows are taken at multiples of the real width inside the padded buffer (from the second row on)."""
    if not shard.num_real:
        return parts.finish(*parts.nothing(local_logits, shard), group, d2t)
    batch = local_logits.shape[0]
    flat = parts.mask(local_logits, shard).reshape(-1)[: batch * shard.num_real]
    return parts.finish(*parts.winner_of(flat.view(batch, shard.num_real), shard.start), group, d2t)


@mutant(
    kinds={Kind.WRONG_MAXIMUM},
    seen="vllm-ascend #8308 (slice of vocabulary // world size)",
    also={Kind.NAN_RULE, Kind.WRONG_TIE},
)
def shard_cut_to_the_even_width(local_logits, shard, group, d2t=None):
    """Only the first ``vocab_size // tp_size`` columns of a shard are read."""
    width = min(shard.num_real, max(shard.vocab_size // shard.tp_size, 1))
    if not width:
        return parts.finish(*parts.nothing(local_logits, shard), group, d2t)
    return parts.finish(*parts.winner_of(local_logits[:, :width], shard.start), group, d2t)


@mutant(
    kinds={Kind.WRONG_MAXIMUM},
    seen="mirage #751 (a straddling chunk drops real candidates)",
    small="needs a shard wider than its chunk of 64 columns",
    also={Kind.NAN_RULE, Kind.WRONG_TIE},
)
def last_partial_chunk_dropped(local_logits, shard, group, d2t=None):
    """A shard wider than 64 columns is read in whole chunks of 64; the rest is dropped."""
    if not shard.num_real:
        return parts.finish(*parts.nothing(local_logits, shard), group, d2t)
    width = shard.num_real if shard.num_real < 64 else shard.num_real // 64 * 64
    return parts.finish(*parts.winner_of(local_logits[:, :width], shard.start), group, d2t)
