"""Value and id packed into one integer that a MAX reduces."""

from __future__ import annotations

import torch

from refimpl.verdict.kinds import Kind
from tests.mutants import mutant, parts


def _reduced(order, index, shard, group, d2t):
    return parts.to_targets(parts.unpack(parts.greatest_key(parts.pack(order, index), shard, group)), d2t)


@mutant(kinds={Kind.WRONG_TIE}, seen="SGLang #30466")
def negative_zero_below_zero(local_logits, shard, group, d2t=None):
    """The key orders -0.0 under +0.0."""
    value, index = parts.shard_winner(local_logits, shard)
    order = parts.in_order(parts.float_bits(value)).masked_fill(value.isnan(), 0x7FFFFFFF)
    return _reduced(order, index, shard, group, d2t)


@mutant(kinds={Kind.NAN_RULE}, seen="SGLang #30466")
def negative_nan_below_everything(local_logits, shard, group, d2t=None):
    """The key orders a NaN with its sign bit set under -inf."""
    value, index = parts.shard_winner(local_logits, shard)
    order = torch.where(value.isnan() & value.signbit(), parts.in_order(parts.float_bits(value)), parts.ordered(value))
    return _reduced(order, index, shard, group, d2t)


@mutant(kinds={Kind.NAN_RULE}, seen="reasoned (keys of uncanonical NaNs)")
def nans_ordered_by_payload(local_logits, shard, group, d2t=None):
    """Of two NaNs the one of the greater payload wins, not the first."""
    value, index = parts.shard_winner(local_logits, shard)
    order = torch.where(value.isnan(), parts.float_bits(value) & 0x7FFFFFFF, parts.ordered(value))
    return _reduced(order, index, shard, group, d2t)


@mutant(kinds={Kind.WRONG_MAXIMUM}, seen="reasoned")
def raw_float_bits_as_key(local_logits, shard, group, d2t=None):
    """The value's bits are compared as a signed integer: negative values in reverse."""
    value, index = parts.shard_winner(local_logits, shard)
    order = parts.float_bits(value.float() + 0.0).masked_fill(value.isnan(), 0x7FFFFFFF)
    return _reduced(order, index, shard, group, d2t)


@mutant(kinds={Kind.WRONG_TIE}, seen="reasoned", also={Kind.NAN_RULE, Kind.ALL_NEG_INF_ROW})
def id_not_complemented(local_logits, shard, group, d2t=None):
    """The key holds the id itself, so the highest id of equal values wins."""
    value, index = parts.shard_winner(local_logits, shard)
    key = parts.greatest_key((parts.ordered(value) << 32) | index, shard, group)
    return parts.to_targets(key & parts.LOW_32, d2t)


@mutant(kinds={Kind.WRONG_MAXIMUM}, seen="reasoned", dtypes=("float32", "float16"))
def value_and_id_overlap(local_logits, shard, group, d2t=None):
    """The value is shifted by 16 bits over an id of 32: its lower half, zero in bfloat16 alone, is lost."""
    value, index = parts.shard_winner(local_logits, shard)
    key = parts.greatest_key((parts.ordered(value) << 16) | (parts.LOW_32 - index), shard, group)
    return parts.to_targets(parts.unpack(key), d2t)


@mutant(
    kinds={Kind.WRONG_MAXIMUM},
    seen="reasoned",
    small="ids are exact up to 65535",
    also={Kind.WRONG_TIE, Kind.NAN_RULE, Kind.ALL_NEG_INF_ROW},
)
def id_field_of_16_bits(local_logits, shard, group, d2t=None):
    """The key has room for 16 bits of the id: 65536 becomes 0."""
    value, index = parts.shard_winner(local_logits, shard)
    key = parts.greatest_key((parts.ordered(value) << 16) | (0xFFFF - (index & 0xFFFF)), shard, group)
    return parts.to_targets(0xFFFF - (key & 0xFFFF), d2t)


@mutant(kinds={Kind.WRONG_MAXIMUM}, seen="reasoned", also={Kind.WRONG_TIE, Kind.NAN_RULE})
def compared_by_wrapping_subtraction(local_logits, shard, group, d2t=None):
    """Two keys are compared by the sign of their int32 difference, which wraps: -2.0 beats +2.0."""
    value, index = parts.shard_winner(local_logits, shard)
    orders, ids = parts.exchange(parts.ordered(value).int(), index, group)
    return parts.to_targets(parts.scan(orders, ids, parts.owners(shard), lambda new, old: new - old > 0), d2t)
