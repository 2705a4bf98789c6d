"""Right tokens by the wrong means."""

from __future__ import annotations

import torch

from refimpl.paths.collectives import all_gather
from refimpl.verdict.kinds import Kind
from tests.mutants import mutant, parts


def _full_gather(local_logits, shard, group, d2t):
    shards = all_gather(local_logits, group)
    row = torch.cat([shards[rank, :, : end - start] for rank, (start, end) in enumerate(shard.bounds)], dim=1)
    return parts.to_targets(row.argmax(dim=1), d2t)


@mutant(kinds={Kind.COMMUNICATION}, seen="vLLM #40612 (a fast path that quietly fell back)")
def gathers_everything(local_logits, shard, group, d2t=None):
    """Every rank's whole shard is gathered."""
    return _full_gather(local_logits, shard, group, d2t)


@mutant(kinds={Kind.COMMUNICATION}, seen="SGLang #25426 (row-count gate)")
def gathers_everything_for_a_batch_of_one(local_logits, shard, group, d2t=None):
    """A batch of one takes the full gather, larger ones the local reduction."""
    if local_logits.shape[0] == 1:
        return _full_gather(local_logits, shard, group, d2t)
    return parts.finish(*parts.shard_winner(local_logits, shard), group, d2t)


@mutant(kinds={Kind.COMMUNICATION}, seen="reasoned", also={Kind.HANG})
def one_exchange_a_row(local_logits, shard, group, d2t=None):
    """Every row has its own collectives: their number grows with the batch."""
    value, index = parts.shard_winner(local_logits, shard)
    tokens = torch.empty_like(index)
    for row in range(len(index)):
        tokens[row] = parts.finish(value[row : row + 1], index[row : row + 1], group, d2t)[0]
    return tokens


@mutant(kinds={Kind.COMMUNICATION}, seen="reasoned", also={Kind.HANG})
def one_candidate_a_column(local_logits, shard, group, d2t=None):
    """The shard is handed over in blocks of 2 columns, one candidate each: what travels grows with the vocabulary."""
    width = max(end - start for start, end in shard.bounds)
    blocks = []
    for begin in range(0, max(width, 1), 2):
        block = local_logits[:, begin : min(begin + 2, shard.num_real)]
        if begin < shard.num_real:
            blocks.append(parts.winner_of(block, shard.start + begin))
        else:
            blocks.append(parts.nothing(local_logits, shard))
    values = all_gather(torch.stack([value for value, _ in blocks]), group).flatten(0, 1)
    ids = all_gather(torch.stack([index for _, index in blocks]), group).flatten(0, 1)
    return parts.to_targets(parts.best(values, ids), d2t)
