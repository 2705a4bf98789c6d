"""From draft ids to target ids."""

from __future__ import annotations

import torch

from refimpl.verdict.kinds import Kind
from tests.mutants import mutant, parts

# A wrong target may be another draft id's, and then looks like a wrong choice.
ANOTHER_DRAFT_ID = {
    Kind.WRONG_MAXIMUM,
    Kind.WRONG_TIE,
    Kind.NAN_RULE,
    Kind.ALL_NEG_INF_ROW,
    Kind.ID_OUT_OF_RANGE,
}


def _draft_ids(local_logits, shard, group):
    return parts.finish(*parts.shard_winner(local_logits, shard), group, None)


@mutant(
    kinds={Kind.WRONG_TARGET},
    seen="TensorRT-LLM #6948 (a misspelt name, the table never used)",
    also=ANOTHER_DRAFT_ID,
    needs_table=True,
)
def table_never_applied(local_logits, shard, group, d2t=None):
    """Draft ids are returned where a table is given."""
    return _draft_ids(local_logits, shard, group)


@mutant(
    kinds={Kind.WRONG_TARGET},
    seen="reasoned (SGLang keeps absolute ids, vLLM offsets)",
    also=ANOTHER_DRAFT_ID,
    needs_table=True,
)
def offsets_taken_for_target_ids(local_logits, shard, group, d2t=None):
    """The table's entry is returned as if it were the target id."""
    ids = _draft_ids(local_logits, shard, group)
    return ids if d2t is None else d2t[ids]


@mutant(kinds={Kind.WRONG_TARGET}, seen="reasoned", also=ANOTHER_DRAFT_ID, needs_table=True)
def table_indexed_by_the_column(local_logits, shard, group, d2t=None):
    """The table is looked up with the column of the shard, not with the id."""
    value, index = parts.shard_winner(local_logits, shard)
    if d2t is not None:
        index = index + d2t[(index - shard.start).clamp(min=0)]
    return parts.finish(value, index, group, None)


@mutant(
    kinds={Kind.WRONG_TARGET},
    seen="reasoned (TensorRT-LLM leaves the table to the caller)",
    also=ANOTHER_DRAFT_ID,
    needs_table=True,
)
def offsets_added_twice(local_logits, shard, group, d2t=None):
    """The path adds the offset, and its wrapper adds it again."""
    ids = _draft_ids(local_logits, shard, group)
    return ids if d2t is None else parts.to_targets(ids, d2t) + d2t[ids]


@mutant(kinds={Kind.RANK_DISAGREEMENT}, seen="reasoned", needs_table=True)
def table_on_rank_zero_only(local_logits, shard, group, d2t=None):
    """Only rank 0 has loaded the table; the others return draft ids."""
    return parts.to_targets(_draft_ids(local_logits, shard, group), d2t if shard.tp_rank == 0 else None)


@mutant(
    kinds={Kind.ID_OUT_OF_RANGE, Kind.WRONG_TARGET},
    seen="reasoned",
    small="offsets are exact up to 32767, which a table of any length can pass",
    also=ANOTHER_DRAFT_ID,
    needs_table=True,
)
def offsets_in_int16(local_logits, shard, group, d2t=None):
    """The table is kept in int16 and its offsets wrap from 32768 on."""
    return parts.to_targets(_draft_ids(local_logits, shard, group), None if d2t is None else d2t.to(torch.int16).long())
