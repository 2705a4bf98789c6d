"""The one collective the pair and gather paths share, under whichever name this torch has for it."""

from __future__ import annotations

import torch
import torch.distributed as dist

# torch 2.13 renamed all_gather_into_tensor and warns about the old name.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def all_gather(tensor: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Gather equally shaped tensors of all ranks: ``(n, ...)`` on each rank gives ``(tp_size, n, ...)``."""
    tp_size = dist.get_world_size(group)
    # gloo accepts only an output that is flat on dimension 0, not a stack-shaped one.
    gathered = tensor.new_empty((tp_size * tensor.shape[0], *tensor.shape[1:]))
    _all_gather(gathered, tensor.contiguous(), group=group)
    return gathered.view(tp_size, *tensor.shape)
