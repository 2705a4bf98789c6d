"""Form: the result's type and shape, the caller's tensors, refusals."""

from __future__ import annotations

import torch

from refimpl.contract import UnsupportedInput
from refimpl.paths.collectives import all_gather
from refimpl.verdict.kinds import Kind
from tests.mutants import mutant, parts


def _right(local_logits, shard, group, d2t):
    return parts.finish(*parts.shard_winner(local_logits, shard), group, d2t)


@mutant(kinds={Kind.RESULT_TYPE}, seen="reasoned (TensorRT-LLM keeps ids in int32)")
def result_in_int32(local_logits, shard, group, d2t=None):
    """The tokens are int32."""
    return _right(local_logits, shard, group, d2t).int()


@mutant(kinds={Kind.RESULT_TYPE}, seen="reasoned (keepdim)")
def result_as_a_column(local_logits, shard, group, d2t=None):
    """The tokens are (batch, 1)."""
    return _right(local_logits, shard, group, d2t).unsqueeze(1)


@mutant(kinds={Kind.RESULT_TYPE}, seen="reasoned")
def result_as_a_list(local_logits, shard, group, d2t=None):
    """The tokens are a list of numbers."""
    return _right(local_logits, shard, group, d2t).tolist()


@mutant(kinds={Kind.RESULT_TYPE}, seen="reasoned (squeeze without a dimension)")
def batch_of_one_squeezed(local_logits, shard, group, d2t=None):
    """A batch of one loses its dimension."""
    return _right(local_logits, shard, group, d2t).squeeze()


@mutant(kinds={Kind.RESULT_TYPE}, seen="reasoned (torch.tensor([]) is float32)")
def empty_batch_turns_to_floats(local_logits, shard, group, d2t=None):
    """The result is built from a list of numbers, of which torch makes float32 where it is empty."""
    return torch.tensor(_right(local_logits, shard, group, d2t).tolist(), device=local_logits.device)


@mutant(kinds={Kind.INPUT_MODIFIED}, seen="reasoned (a top-k by repeated argmax)")
def real_columns_overwritten(local_logits, shard, group, d2t=None):
    """The shard's winner is struck out of the caller's logits."""
    value, index = parts.shard_winner(local_logits, shard)
    if shard.num_real:
        local_logits.scatter_(1, (index - shard.start).unsqueeze(1), parts.NEG_INF)
    return parts.finish(value, index, group, d2t)


@mutant(
    kinds={Kind.INPUT_MODIFIED, Kind.WRONG_TARGET},
    seen="reasoned (SGLang turns offsets into absolute ids)",
    also={Kind.ROW_DEPENDENCE, Kind.NONDETERMINISTIC},
    needs_table=True,
)
def table_made_absolute_in_place(local_logits, shard, group, d2t=None):
    """The caller's table is turned into target ids in place: right until it is handed in again."""
    ids = _right(local_logits, shard, group, None)
    return ids if d2t is None else d2t.add_(torch.arange(shard.vocab_size, device=d2t.device))[ids]


@mutant(
    kinds={Kind.RESULT_OVERWRITTEN},
    seen="reasoned (scratch borrowed from the padding)",
    small="needs room for an int64 at the end of every row, and a caller that uses its logits buffer again",
)
def result_in_the_padding(local_logits, shard, group, d2t=None):
    """The result is a strided view of the caller's padding, where it is the caller's only until the buffer is."""
    tokens = _right(local_logits, shard, group, d2t)
    cells = 8 // local_logits.element_size()
    whole = local_logits.is_contiguous() and local_logits.data_ptr() % 8 == 0 and shard.padded_size % cells == 0
    if not whole or shard.num_padding < cells or not len(tokens):
        return tokens
    home = local_logits.view(torch.int64)[:, -1]
    return home.copy_(tokens)


@mutant(kinds={Kind.REFUSED_ON_SOME_RANKS}, seen="TokenSpeed #1399 (eligibility known to the owner rank only)")
def refuses_own_padding(local_logits, shard, group, d2t=None):
    """A rank refuses where its own shard has padding; the others go on."""
    if shard.num_padding:
        raise UnsupportedInput("the shard has padding")
    return _right(local_logits, shard, group, d2t)


@mutant(kinds={Kind.REFUSED_ON_SOME_RANKS}, seen="reasoned")
def refuses_own_nans(local_logits, shard, group, d2t=None):
    """A rank refuses where its own real columns hold a NaN: values decide, and each rank's own."""
    if local_logits[:, : shard.num_real].isnan().any():
        raise UnsupportedInput("the logits hold NaNs")
    return _right(local_logits, shard, group, d2t)


@mutant(kinds={Kind.REFUSED_LATE}, seen="TokenSpeed #1269 (a probe that all ranks answer)")
def refuses_after_asking_the_ranks(local_logits, shard, group, d2t=None):
    """The ranks agree by a collective that one of them has padding, and refuse after it."""
    padding = torch.tensor([shard.num_padding], device=local_logits.device)
    if all_gather(padding, group).any():
        raise UnsupportedInput("a shard has padding")
    return _right(local_logits, shard, group, d2t)
