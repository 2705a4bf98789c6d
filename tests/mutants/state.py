"""What a path keeps between calls, and what it draws at random."""

from __future__ import annotations

import itertools

import torch

from refimpl.paths.collectives import all_gather
from refimpl.verdict.kinds import Kind
from tests.mutants import mutant, parts

STALE = {Kind.WRONG_MAXIMUM, Kind.WRONG_TIE, Kind.NAN_RULE, Kind.ALL_NEG_INF_ROW, Kind.ID_OUT_OF_RANGE, Kind.RAISED}

_outputs: dict[torch.device, torch.Tensor] = {}


@mutant(kinds={Kind.RESULT_OVERWRITTEN}, seen="reasoned (captured graphs return their static output)")
def static_output_buffer(local_logits, shard, group, d2t=None):
    """Every call returns the same buffer, which the next call overwrites."""
    tokens = parts.finish(*parts.shard_winner(local_logits, shard), group, d2t)
    kept = _outputs.get(tokens.device)
    if kept is None or len(kept) < len(tokens):
        kept = _outputs[tokens.device] = torch.empty_like(tokens)
    kept[: len(tokens)] = tokens
    return kept[: len(tokens)]


_calls = itertools.count(1)


@mutant(
    kinds={Kind.NONDETERMINISTIC, Kind.ROW_DEPENDENCE},
    seen="reasoned (a wrong one of several rotating slots)",
    also={Kind.WRONG_MAXIMUM, Kind.NAN_RULE},
)
def wrong_on_every_third_call(local_logits, shard, group, d2t=None):
    """Every third call of a process takes the first rank's candidate without looking at the others."""
    values, ids = parts.exchange(*parts.shard_winner(local_logits, shard), group)
    index = ids[parts.owners(shard)[0]] if next(_calls) % 3 == 0 else parts.best(values, ids)
    return parts.to_targets(index, d2t)


@mutant(kinds={Kind.WRONG_TIE, Kind.NONDETERMINISTIC}, seen="reasoned", also={Kind.ALL_NEG_INF_ROW})
def random_tie_break(local_logits, shard, group, d2t=None):
    """Inside a shard a tie is decided by torch's default generator; the ranks agree on the outcome."""

    def any_of_tied(columns):
        lots = torch.rand(columns.shape, device=columns.device)
        return lots.masked_fill(~parts.tied(columns, 1), -1.0).argmax(dim=1)

    value, index = parts.shard_winner(local_logits, shard, lambda columns: parts.numbers_by(any_of_tied, columns))
    return parts.finish(value, index, group, d2t)


_scratch: dict[torch.device, torch.Tensor] = {}


@mutant(
    kinds={Kind.ROW_DEPENDENCE, Kind.NONDETERMINISTIC},
    seen="reasoned (scratch that grows to the greatest batch)",
    also=STALE,
)
def stale_rows_of_a_larger_batch(local_logits, shard, group, d2t=None):
    """The scratch keeps the size of the greatest batch, but is read as if it had this batch's: after a larger batch
    its old rows stand where other ranks' candidates are looked for."""
    value, index = parts.shard_winner(local_logits, shard)
    batch = value.shape[0]
    mine = torch.stack((value.double(), index.double()), dim=-1)
    scratch = _scratch.get(value.device)
    if scratch is None or len(scratch) < batch:
        scratch = _scratch[value.device] = torch.zeros_like(mine)
    scratch[:batch] = mine
    rows = all_gather(scratch, group).reshape(-1, 2)[: shard.tp_size * batch]
    pairs = rows.view(shard.tp_size, batch, 2)
    return parts.to_targets(parts.best(pairs[..., 0], pairs[..., 1].long()), d2t)


_slots: dict[tuple[int, int], torch.Tensor] = {}


@mutant(
    kinds={Kind.ROW_DEPENDENCE, Kind.NONDETERMINISTIC},
    seen="reasoned (TensorRT-LLM sums slots of a zeroed row)",
    also=STALE,
)
def slots_not_zeroed_again(local_logits, shard, group, d2t=None):
    """The slots that a SUM fills are kept for the next call of the same batch size, which adds to what they hold."""
    value, index = parts.shard_winner(local_logits, shard)
    key = (shard.tp_size, value.shape[0])
    if key not in _slots:
        _slots[key] = torch.zeros((*key, 2), dtype=torch.float64, device=value.device)
    values, ids = parts.slot_exchange(value, index, shard, group, _slots[key])
    return parts.to_targets(parts.best(values, ids), d2t)


_targets: dict[int, torch.Tensor] = {}


@mutant(
    kinds={Kind.WRONG_TARGET, Kind.ROW_DEPENDENCE},
    seen="reasoned (SGLang turns offsets into absolute ids once, at load)",
    also={Kind.NONDETERMINISTIC},
    needs_table=True,
)
def table_kept_from_the_first_call(local_logits, shard, group, d2t=None):
    """Target ids are computed once for a vocabulary size; a later call with another table gets the old ones."""
    ids = parts.finish(*parts.shard_winner(local_logits, shard), group, None)
    if d2t is None:
        return ids
    if shard.vocab_size not in _targets:
        _targets[shard.vocab_size] = torch.arange(shard.vocab_size, device=d2t.device) + d2t
    return _targets[shard.vocab_size][ids]


_starts: dict[tuple[int, int], int] = {}


@mutant(
    kinds={Kind.ROW_DEPENDENCE, Kind.NONDETERMINISTIC},
    seen="reasoned (captured graphs keep what they were captured with)",
    small="two calls of two layouts; a long history is cut as far as the time allows",
    also=STALE,
)
def offset_kept_from_the_first_call(local_logits, shard, group, d2t=None):
    """The shard's start is kept from the first call of its width; a later one with other bounds gets the old one."""
    value, index = parts.shard_winner(local_logits, shard)
    start = _starts.setdefault((shard.tp_size, shard.padded_size), shard.start)
    return parts.finish(value, index - shard.start + start if shard.num_real else index, group, d2t)
