"""Inside a shard: how its columns are compared."""

from __future__ import annotations

import torch

from refimpl.verdict.kinds import Kind
from tests.mutants import mutant, parts


@mutant(
    kinds={Kind.WRONG_MAXIMUM},
    seen="reasoned (a loop unrolled for narrow shards)",
    also={Kind.NAN_RULE, Kind.WRONG_TIE},
)
def tail_compared_with_its_neighbour(local_logits, shard, group, d2t=None):
    """In shards of 4 to 7 columns those from the fourth on are held against their left neighbour, not the best."""

    def unrolled(columns):
        index = parts.first(columns[:, :3])
        for column in range(3, columns.shape[1]):
            wins = parts.better(columns[:, column], columns[:, column - 1])
            best = columns.gather(1, index.unsqueeze(1)).squeeze(1)
            wins &= ~(best.isnan() & columns[:, column].isnan())
            index = torch.where(wins, column, index)
        return index

    pick = unrolled if 4 <= shard.num_real < 8 else parts.first
    return parts.finish(*parts.shard_winner(local_logits, shard, pick), group, d2t)


@mutant(
    kinds={Kind.WRONG_TIE},
    seen="reasoned (a two-stage kernel)",
    small="blocks are of 65536 columns",
    also={Kind.ALL_NEG_INF_ROW},
)
def later_block_wins_ties(local_logits, shard, group, d2t=None):
    """A shard of more than 65536 columns is taken in blocks, and between blocks the later one wins a tie."""

    def by_block(columns):
        blocks = [(begin, columns[:, begin : begin + 65536]) for begin in range(0, columns.shape[1], 65536)]
        winners = [parts.winner_of(block, begin) for begin, block in blocks]
        values, ids = torch.stack([value for value, _ in winners]), torch.stack([index for _, index in winners])
        return parts.scan(values, ids, range(len(blocks)), lambda new, old: parts.better(new, old) | (new == old))

    pick = by_block if shard.num_real > 65536 else parts.first
    return parts.finish(*parts.shard_winner(local_logits, shard, pick), group, d2t)
