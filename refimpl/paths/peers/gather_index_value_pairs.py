"""TensorRT-LLM's draft reduction: float32 (index, value) pairs, interleaved along the row, first best rank wins.

After ``SpecWorkerBase._get_local_max_and_combined`` and ``_get_draft_tokens_from_gathered``
(NVIDIA/TensorRT-LLM, tensorrt_llm/_torch/speculative, as of September 2026; also the base of pull request #18836). The
index comes first; the id is ``tp_rank * shard_width + local index``; even columns of the gathered row are ids, odd ones
values. The draft path does not trim padding columns (only the gathered path does; #18836 gates its target path on a
padding of 0 for that reason), so padding takes part: in the engine it is the zero logit of a zero row, which wins where
all real logits are negative. Ids are float32 without a gate, so from 2**24 + 1 on some are rounded. The D2T table is
applied once by the caller.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from refimpl.contract import VocabShard
from refimpl.paths.collectives import all_gather
from refimpl.paths.peers import gates


def index_value_pairs(local_logits: torch.Tensor, shard: VocabShard) -> torch.Tensor:
    """The rank's own float32 (id, value) pairs ``(batch, 2)``, over all of its columns."""
    values, columns = local_logits.max(dim=1)
    ids = columns.int() + shard.tp_rank * shard.padded_size
    return torch.stack([ids.float(), values.float()], dim=1)


def best_of_interleaved(row: torch.Tensor, d2t: torch.Tensor | None) -> torch.Tensor:
    """int64 ids ``(batch,)`` from ``(batch, 2 * tp_size)``: ids in even columns, values in odd ones."""
    best_rank = row[:, 1::2].argmax(dim=1, keepdim=True)
    ids = row[:, 0::2].gather(1, best_rank).squeeze(1).long()
    return ids if d2t is None else ids + d2t[ids]


def gather_index_value_pairs(
    local_logits: torch.Tensor, shard: VocabShard, group: dist.ProcessGroup, d2t: torch.Tensor | None = None
) -> torch.Tensor:
    """Token ids from one float32 pair a rank: ``(batch, padded_size)`` logits give int64 ``(batch,)``.

    Raises UnsupportedInput for shards that are not of one width.
    """
    gates.equal_shards(shard, "TensorRT-LLM")
    gathered = all_gather(index_value_pairs(local_logits, shard), group)
    return best_of_interleaved(torch.cat(gathered.unbind(0), dim=1), d2t)


gather_index_value_pairs.tie_break = "draft_id"  # type: ignore[attr-defined]
