"""Equal values: who wins a tie, inside a shard, across ranks, and in which id space."""

from __future__ import annotations

import torch

from refimpl.verdict.kinds import Kind
from tests.mutants import mutant, parts


def _last_of_numbers(columns):
    return parts.numbers_by(lambda numbers: numbers.shape[1] - 1 - numbers.flip(1).argmax(dim=1), columns)


@mutant(kinds={Kind.WRONG_TIE}, seen="KsanaLLM greedy.cu", also={Kind.ALL_NEG_INF_ROW})
def last_rank_wins_ties(local_logits, shard, group, d2t=None):
    """The scan over the ranks lets an equal value of a later rank win."""
    values, ids = parts.exchange(*parts.shard_winner(local_logits, shard), group)
    index = parts.scan(values, ids, parts.owners(shard), lambda new, old: parts.better(new, old) | (new == old))
    return parts.to_targets(index, d2t)


@mutant(kinds={Kind.WRONG_TIE}, seen="lattice #859 (Rust max_by keeps the last)", also={Kind.ALL_NEG_INF_ROW})
def last_column_wins_ties(local_logits, shard, group, d2t=None):
    """Inside a shard the last of equal columns wins."""
    return parts.finish(*parts.shard_winner(local_logits, shard, _last_of_numbers), group, d2t)


@mutant(
    kinds={Kind.WRONG_TIE},
    seen="reasoned (kernels with a least width, as TokenSpeed's)",
    small="shards below 4096 columns take another kernel",
    also={Kind.ALL_NEG_INF_ROW},
)
def last_column_wins_ties_of_wide_shards(local_logits, shard, group, d2t=None):
    """From 4096 columns on another kernel takes the shard, where the last of equal columns wins."""
    pick = _last_of_numbers if shard.num_real >= 4096 else parts.first
    return parts.finish(*parts.shard_winner(local_logits, shard, pick), group, d2t)


@mutant(
    kinds={Kind.WRONG_TIE},
    seen="KsanaLLM greedy.cu (thread-strided scan)",
    small="lanes meet at the fifth column of a shard, and removing a column before it moves both",
    also={Kind.ALL_NEG_INF_ROW},
)
def lower_lane_wins_ties(local_logits, shard, group, d2t=None):
    """Four lanes stride through the shard and the lower lane wins a tie: column 4 before column 1."""

    def by_lane(columns):
        order = sorted(range(columns.shape[1]), key=lambda column: column % 4)
        order = torch.tensor(order, device=columns.device)
        return order[columns[:, order].argmax(dim=1)]

    value, index = parts.shard_winner(local_logits, shard, lambda columns: parts.numbers_by(by_lane, columns))
    return parts.finish(value, index, group, d2t)


@mutant(kinds={Kind.WRONG_TIE}, seen="reasoned", also={Kind.ALL_NEG_INF_ROW})
def tree_prefers_the_higher_rank(local_logits, shard, group, d2t=None):
    """In every pair of the tree the higher rank wins a tie."""
    values, ids = parts.exchange(*parts.shard_winner(local_logits, shard), group)
    index = parts.tree(values, ids, parts.owners(shard), lambda new, old: parts.better(new, old) | (new == old))
    return parts.to_targets(index, d2t)


@mutant(kinds={Kind.WRONG_TIE}, seen="KsanaLLM greedy.cu (shuffle tree)", tp_sizes=(3,), also={Kind.NAN_RULE})
def folded_tree_mixes_the_ranks(local_logits, shard, group, d2t=None):
    """A tree that folds the upper half of the ranks onto the lower has lost their order: of ranks 1 and 2, 2 wins."""
    values, ids = parts.exchange(*parts.shard_winner(local_logits, shard), group)
    nodes = [(values[rank], ids[rank]) for rank in parts.owners(shard)]
    while len(nodes) > 1:
        half = (len(nodes) + 1) // 2
        for rank, upper in enumerate(nodes[half:]):
            nodes[rank] = parts.match(nodes[rank], upper, parts.better)
        nodes = nodes[:half]
    return parts.to_targets(nodes[0][1], d2t)


@mutant(kinds={Kind.WRONG_TIE}, seen="reasoned", also={Kind.NAN_RULE, Kind.ALL_NEG_INF_ROW})
def gather_order_reversed(local_logits, shard, group, d2t=None):
    """The gathered candidates stand in reverse rank order, so the first of equals is the highest rank's."""
    values, ids = parts.exchange(*parts.shard_winner(local_logits, shard), group)
    backwards = parts.owners(shard)[::-1]
    return parts.to_targets(parts.best(values[backwards], ids[backwards]), d2t)


@mutant(kinds={Kind.RANK_DISAGREEMENT}, seen="reasoned (ring all-gather)")
def own_candidate_first(local_logits, shard, group, d2t=None):
    """The candidates stand in ring order from the own rank on, so each rank lets itself win ties."""
    values, ids = parts.exchange(*parts.shard_winner(local_logits, shard), group)
    ring = sorted(parts.owners(shard), key=lambda rank: (rank - shard.tp_rank) % shard.tp_size)
    return parts.to_targets(parts.best(values[ring], ids[ring]), d2t)


@mutant(
    kinds={Kind.WRONG_TIE},
    seen="vLLM get_top_k_tokens (torch.topk)",
    also={Kind.NAN_RULE, Kind.ALL_NEG_INF_ROW},
)
def topk_chooses_among_ties(local_logits, shard, group, d2t=None):
    """torch.topk takes the shard's winner, in its own order among equals (from 4 columns on)."""
    value, index = parts.shard_winner(local_logits, shard, lambda columns: columns.topk(1).indices[:, 0])
    return parts.finish(value, index, group, d2t)


@mutant(kinds={Kind.WRONG_TIE}, seen="reasoned", also={Kind.NAN_RULE, Kind.ALL_NEG_INF_ROW})
def end_of_an_ascending_sort(local_logits, shard, group, d2t=None):
    """The winner is the end of a stable ascending sort: the last of equals."""
    value, index = parts.shard_winner(local_logits, shard, lambda columns: columns.sort(stable=True).indices[:, -1])
    return parts.finish(value, index, group, d2t)


@mutant(
    kinds={Kind.WRONG_TIE},
    seen="reasoned",
    small="the CPU's unstable sort is stable up to 16 columns",
    also={Kind.NAN_RULE, Kind.ALL_NEG_INF_ROW},
)
def head_of_an_unstable_sort(local_logits, shard, group, d2t=None):
    """The winner is the head of an unstable descending sort, in its own order among equals."""
    value, index = parts.shard_winner(local_logits, shard, lambda columns: columns.argsort(descending=True)[:, 0])
    return parts.finish(value, index, group, d2t)


# -- claims about the id space that decides ---------------------------------------------------------------------------


@mutant(kinds={Kind.WRONG_TIE}, seen="vLLM LocalArgmaxMixin's docstring", also={Kind.NAN_RULE}, needs_table=True)
def claims_target_ids_maps_by_draft_id(local_logits, shard, group, d2t=None):
    """Claims that the lowest target id wins a tie, but maps the lowest draft id."""
    value, index = parts.shard_winner(local_logits, shard)
    return parts.finish(value, index, group, d2t)


claims_target_ids_maps_by_draft_id.tie_break = "target_id"


@mutant(kinds={Kind.WRONG_TIE}, seen="reasoned", also={Kind.NAN_RULE}, needs_table=True)
def target_ids_decide_across_ranks_only(local_logits, shard, group, d2t=None):
    """The lowest target id decides between ranks, the lowest draft id inside a shard."""
    value, index = parts.shard_winner(local_logits, shard)
    values, ids = parts.exchange(value, index, group)
    if d2t is None:
        return parts.best(values, ids)
    owners = parts.owners(shard)
    return parts.best_target(values[owners], parts.to_targets(ids[owners], d2t))


target_ids_decide_across_ranks_only.tie_break = "target_id"


@mutant(kinds={Kind.WRONG_TIE}, seen="reasoned", also={Kind.NAN_RULE}, needs_table=True)
def target_ids_decide_inside_a_shard_only(local_logits, shard, group, d2t=None):
    """The lowest target id decides inside a shard, the lowest rank between shards."""
    if d2t is None:
        return parts.finish(*parts.shard_winner(local_logits, shard), group, d2t)
    targets = torch.arange(shard.start, shard.end, device=d2t.device) + d2t[shard.start : shard.end]
    value, index = parts.shard_winner(local_logits, shard, lambda columns: parts.lowest_target(columns, targets))
    values, ids = parts.exchange(value, index, group)
    return parts.to_targets(parts.best(values, ids), d2t).masked_fill((values == parts.NEG_INF).all(dim=0), 0)


target_ids_decide_inside_a_shard_only.tie_break = "target_id"
