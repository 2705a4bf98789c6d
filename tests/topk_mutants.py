"""Seeded bugs of top-k paths: each is a right local reduction but for the one thing that its first line says.

``KINDS`` says as what the properties must refute each; a kind outside is a wrong diagnosis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from refimpl.contract import VocabShard
from refimpl.paths.collectives import all_gather
from refimpl.topk.contract import check_k
from refimpl.topk.full_gather_topk import full_gather_topk, greatest
from refimpl.topk.gather_topk_candidates import NO_ID

Pair = tuple[Tensor, Tensor]
KINDS: dict[str, set[str]] = {}


def mutant(*kinds: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        KINDS[function.__name__] = set(kinds)
        return function

    return register


def own_ids(shard: VocabShard, d2t: Tensor | None) -> Tensor:
    ids = torch.arange(shard.start, shard.end)
    return ids if d2t is None else ids + d2t[shard.start : shard.end]


def filled(values: Tensor, ids: Tensor, width: int, value: float = -torch.inf, token: int = NO_ID) -> Pair:
    """Up to ``width`` candidates: what a shard lacks is -inf with an id above all others."""
    missing = (values.shape[0], width - values.shape[1])
    return torch.cat([values, values.new_full(missing, value)], 1), torch.cat([ids, ids.new_full(missing, token)], 1)


def widest(shard: VocabShard, k: int) -> int:
    return min(k, max(end - start for start, end in shard.bounds))


def exchange(values: Tensor, ids: Tensor, group: dist.ProcessGroup) -> Pair:
    return torch.cat(all_gather(values, group).unbind(0), 1), torch.cat(all_gather(ids, group).unbind(0), 1)


def unstable(logits: Tensor, ids: Tensor, k: int) -> Pair:
    values, places = logits.topk(min(k, logits.shape[1]), dim=1)
    return values, ids.expand(logits.shape).gather(1, places)


@mutant("wrong-tie", "nan-rule")
def unstable_order_in_the_shard(
    logits: Tensor, shard: VocabShard, group: dist.ProcessGroup, k: int, d2t: Tensor | None = None
) -> Pair:
    """torch.topk on the shard, whose order of equals is not defined (vLLM's get_top_k_tokens off CUDA)."""
    check_k(k, shard)
    width = widest(shard, k)
    found = unstable(logits[:, : shard.num_real], own_ids(shard, d2t), width)
    return greatest(*exchange(*filled(*found, width), group), k)


@mutant("wrong-tie", "nan-rule", "id-out-of-range")
def unstable_order_of_candidates(
    logits: Tensor, shard: VocabShard, group: dist.ProcessGroup, k: int, d2t: Tensor | None = None
) -> Pair:
    """torch.topk over the gathered candidates: merged without a tie rule."""
    check_k(k, shard)
    width = widest(shard, k)
    found = greatest(logits[:, : shard.num_real], own_ids(shard, d2t), width)
    return unstable(*exchange(*filled(*found, width), group), k)


@mutant("wrong-tie", "nan-rule")
def higher_ranks_first(
    logits: Tensor, shard: VocabShard, group: dist.ProcessGroup, k: int, d2t: Tensor | None = None
) -> Pair:
    """A stable merge of candidates in falling rank order."""
    check_k(k, shard)
    width = widest(shard, k)
    found = filled(*greatest(logits[:, : shard.num_real], own_ids(shard, d2t), width), width)
    values, ids = (torch.cat(all_gather(part, group).flip(0).unbind(0), 1) for part in found)
    # What a narrower shard fills up with stays last.
    places = torch.where(ids == NO_ID, NO_ID, torch.arange(ids.shape[1]).expand(ids.shape))
    values, chosen = greatest(values, places, k)
    return values, ids.gather(1, chosen)


@mutant("wrong-entry", "wrong-tie", "nan-rule")
def an_equal_share_of_k(
    logits: Tensor, shard: VocabShard, group: dist.ProcessGroup, k: int, d2t: Tensor | None = None
) -> Pair:
    """Every rank offers k / tp_size candidates, as if winners were spread evenly; all it has where it must fill k."""
    check_k(k, shard)
    share = -(-k // shard.tp_size)
    smallest = min(end - start for start, end in shard.bounds)
    width = share if share <= smallest else widest(shard, k)
    found = greatest(logits[:, : shard.num_real], own_ids(shard, d2t), width)
    return greatest(*exchange(*filled(*found, width), group), k)


@mutant("raised", "raised-on-some-ranks", "result-type")
def k_over_the_width_is_not_thought_of(
    logits: Tensor, shard: VocabShard, group: dist.ProcessGroup, k: int, d2t: Tensor | None = None
) -> Pair:
    """torch.topk of k on a shard of fewer columns raises, on the narrow ranks only."""
    check_k(k, shard)
    logits[:, : shard.num_real].topk(k, dim=1)
    return full_gather_topk(logits, shard, group, k, d2t)


@mutant("wrong-entry", "wrong-tie", "id-out-of-range", "repeated-id", "value-mismatch", "nan-rule")
def missing_candidates_are_zeros(
    logits: Tensor, shard: VocabShard, group: dist.ProcessGroup, k: int, d2t: Tensor | None = None
) -> Pair:
    """A narrow shard fills up with the value 0."""
    check_k(k, shard)
    width = widest(shard, k)
    found = greatest(logits[:, : shard.num_real], own_ids(shard, d2t), width)
    return greatest(*exchange(*filled(*found, width, value=0.0), group), k)


@mutant("id-out-of-range")
def missing_ids_through_a_float(
    logits: Tensor, shard: VocabShard, group: dist.ProcessGroup, k: int, d2t: Tensor | None = None
) -> Pair:
    """The id of what is missing comes from torch.nn.functional.pad, whose fill value is a float: it wraps below all."""
    check_k(k, shard)
    width = widest(shard, k)
    values, ids = greatest(logits[:, : shard.num_real], own_ids(shard, d2t), width)
    missing = (0, width - values.shape[1])
    return greatest(*exchange(pad(values, missing, value=-torch.inf), pad(ids, missing, value=NO_ID), group), k)


@mutant("repeated-id", "value-mismatch", "id-out-of-range", "wrong-entry", "wrong-tie", "nan-rule")
def local_ids(logits: Tensor, shard: VocabShard, group: dist.ProcessGroup, k: int, d2t: Tensor | None = None) -> Pair:
    """Ids count from the shard's first column."""
    check_k(k, shard)
    width = widest(shard, k)
    found = greatest(logits[:, : shard.num_real], torch.arange(shard.num_real), width)
    values, ids = greatest(*exchange(*filled(*found, width), group), k)
    return values, ids if d2t is None else ids + d2t[ids]


@mutant("id-out-of-range", "repeated-id", "value-mismatch", "wrong-entry", "wrong-tie", "nan-rule")
def padding_enters_at_a_large_k(
    logits: Tensor, shard: VocabShard, group: dist.ProcessGroup, k: int, d2t: Tensor | None = None
) -> Pair:
    """Padding is cut only where k fits into the real columns: beyond, the whole buffer is ranked."""
    check_k(k, shard)
    width = min(k, shard.padded_size) if k > min(e - s for s, e in shard.bounds) else widest(shard, k)
    if k <= min(e - s for s, e in shard.bounds):
        found = greatest(logits[:, : shard.num_real], own_ids(shard, d2t), width)
    else:
        ids = pad(own_ids(shard, d2t), (0, shard.num_padding), value=shard.end)
        found = greatest(logits, ids, width)
    values, ids = exchange(*filled(*found, width), group)
    return greatest(values, ids, k)


@mutant("value-mismatch", "id-out-of-range", "wrong-entry", "wrong-tie", "repeated-id", "nan-rule")
def ids_of_another_rank(
    logits: Tensor, shard: VocabShard, group: dist.ProcessGroup, k: int, d2t: Tensor | None = None
) -> Pair:
    """The ids of rank r stand beside the values of rank r + 1."""
    check_k(k, shard)
    width = widest(shard, k)
    found = filled(*greatest(logits[:, : shard.num_real], own_ids(shard, d2t), width), width)
    values, ids = exchange(*found, group)
    return greatest(values, ids.roll(width, dims=1), k)


@mutant("wrong-tie", "nan-rule")
def draft_ids_decide(
    logits: Tensor, shard: VocabShard, group: dist.ProcessGroup, k: int, d2t: Tensor | None = None
) -> Pair:
    """Ties go to the lowest draft id, which is mapped afterwards."""
    check_k(k, shard)
    width = widest(shard, k)
    found = greatest(logits[:, : shard.num_real], own_ids(shard, None), width)
    values, ids = greatest(*exchange(*filled(*found, width), group), k)
    return values, ids if d2t is None else ids + d2t[ids]


@mutant("id-out-of-range", "value-mismatch", "wrong-entry", "wrong-tie", "repeated-id", "nan-rule")
def no_table(logits: Tensor, shard: VocabShard, group: dist.ProcessGroup, k: int, d2t: Tensor | None = None) -> Pair:
    """The table is never applied."""
    return full_gather_topk(logits, shard, group, k, None)


@mutant("nan-rule")
def nans_come_last(
    logits: Tensor, shard: VocabShard, group: dist.ProcessGroup, k: int, d2t: Tensor | None = None
) -> Pair:
    """NaNs rank below -inf, but are returned as they are."""
    check_k(k, shard)
    ids = torch.arange(shard.vocab_size) if d2t is None else torch.arange(shard.vocab_size) + d2t
    rows = torch.cat(
        [part[:, : e - s] for part, (s, e) in zip(all_gather(logits, group), shard.bounds, strict=True)], 1
    )
    ranked = torch.where(rows.isnan(), -torch.inf, rows)
    by_id = (ids + ids.max() * rows.isnan()).argsort(dim=1, stable=True)
    places = by_id.gather(1, ranked.gather(1, by_id).sort(dim=1, descending=True, stable=True).indices[:, :k])
    return rows.gather(1, places), ids.expand(rows.shape).gather(1, places)


@mutant("wrong-tie")
def zeros_are_told_apart(
    logits: Tensor, shard: VocabShard, group: dist.ProcessGroup, k: int, d2t: Tensor | None = None
) -> Pair:
    """Candidates that are numbers are ordered by their bits: 0.0 stands before -0.0."""
    values, ids = full_gather_topk(logits, shard, group, k, d2t)
    bits = values.float().view(torch.int32)
    order = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long().masked_fill(values.isnan(), 0x7FFFFFFF)
    places = order.sort(dim=1, descending=True, stable=True).indices
    return values.gather(1, places), ids.gather(1, places)


@mutant("result-type")
def float32_values(
    logits: Tensor, shard: VocabShard, group: dist.ProcessGroup, k: int, d2t: Tensor | None = None
) -> Pair:
    """Values come back in the dtype of the packing."""
    values, ids = full_gather_topk(logits, shard, group, k, d2t)
    return values.float(), ids


@mutant("result-type")
def one_squeezed(
    logits: Tensor, shard: VocabShard, group: dist.ProcessGroup, k: int, d2t: Tensor | None = None
) -> Pair:
    """k of one loses its dimension."""
    values, ids = full_gather_topk(logits, shard, group, k, d2t)
    return values.squeeze(1), ids.squeeze(1)


@mutant("result-overwritten")
def one_buffer(logits: Tensor, shard: VocabShard, group: dist.ProcessGroup, k: int, d2t: Tensor | None = None) -> Pair:
    """Every call of one shape returns the same two tensors."""
    values, ids = full_gather_topk(logits, shard, group, k, d2t)
    kept = _buffers.setdefault((tuple(values.shape), values.dtype), (values, ids))
    kept[0].copy_(values)
    kept[1].copy_(ids)
    return kept


_buffers: dict[Any, Pair] = {}


@mutant("result-type")
def entries_invented(
    logits: Tensor, shard: VocabShard, group: dist.ProcessGroup, k: int, d2t: Tensor | None = None
) -> Pair:
    """k beyond the vocabulary is filled up with -inf and id 0."""
    found = full_gather_topk(logits, shard, group, min(k, shard.vocab_size), d2t)
    return filled(*found, k, token=0)


@mutant("communication")
def gathers_everything(
    logits: Tensor, shard: VocabShard, group: dist.ProcessGroup, k: int, d2t: Tensor | None = None
) -> Pair:
    """Right by the wrong means."""
    return full_gather_topk(logits, shard, group, k, d2t)


@mutant("rank-disagreement")
def every_rank_its_own(
    logits: Tensor, shard: VocabShard, group: dist.ProcessGroup, k: int, d2t: Tensor | None = None
) -> Pair:
    """Each rank ranks only what it would win itself: its own candidates first among equals."""
    check_k(k, shard)
    width = widest(shard, k)
    found = filled(*greatest(logits[:, : shard.num_real], own_ids(shard, d2t), width), width)
    values, ids = exchange(*found, group)
    mine = torch.arange(values.shape[1]) // max(width, 1) == shard.tp_rank
    places = (ids - NO_ID // 2 * mine * (ids != NO_ID)).argsort(dim=1, stable=True)
    values, ids = values.gather(1, places), ids.gather(1, places)
    order = values.sort(dim=1, descending=True, stable=True).indices[:, :k]
    return values.gather(1, order), ids.gather(1, order)
