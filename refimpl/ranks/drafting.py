"""A drafting loop on the ranks: a toy draft model with the head under test, drafting several tokens in a row, and a
greedy verification of what it drafted.

The toy draft model keeps a memory and embeds a token as the row of the lm_head that it makes likely next. The toy
target is the same model, which on some (position, token) pairs expects another successor: so it accepts most drafts and
refuses some. It verifies as engines do: all positions are fed the drafted tokens, and the first position whose greedy
token is not the drafted one ends what is accepted.

The loop is run twice, each answer fed its own tokens back: by the full gather, and by the path under test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from refimpl.drawn import mixed
from refimpl.head import Head, torch_dtype
from refimpl.paths.full_gather import full_gather

if TYPE_CHECKING:
    from refimpl.ranks.executor import Executor

# hidden states and spec_step_idx -> token ids
Answer = Callable[[torch.Tensor, int], torch.Tensor]
# One in so many (position, token) pairs has another successor in the target.
_DISAGREES = 8
_MEMORY = 0.25


class Toy:
    """Draft or target model around a head: token ids ``(batch,)`` and hidden states ``(batch, input_size)``."""

    def __init__(self, head: Head, device: torch.device, seed: int, *, is_target: bool) -> None:
        self._head = head
        self._device = device
        self._seed = seed
        self._is_target = is_target

    def start(self, batch: int) -> torch.Tensor:
        return torch.zeros(batch, self._head.input_size, device=self._device)

    def step(self, memory: torch.Tensor, tokens: torch.Tensor, position: int) -> torch.Tensor:
        """The next hidden state, float32 of unit mean square."""
        embedded = self._embed(tokens, position)
        return _normal(embedded + _MEMORY * torch.roll(memory, 1, dims=1).tanh())

    def hidden_states(self, memory: torch.Tensor) -> torch.Tensor:
        return memory.to(torch_dtype(self._head.dtype))

    def _embed(self, tokens: torch.Tensor, position: int) -> torch.Tensor:
        ids = tokens.cpu().numpy()
        successors = mixed(ids, self._seed) % np.uint64(self._head.num_logits)
        if self._is_target:
            other = mixed(ids, self._seed + 1 + position)
            successors = np.where(
                other % np.uint64(_DISAGREES) == 0, mixed(other, 3) % np.uint64(self._head.num_logits), successors
            )
        rows = torch.cat([self._head.weight_rows(int(row), int(row) + 1, position) for row in successors]).float()
        if self._head.norm:
            rows = rows / self._head.norm_weight(position).float()  # which the norm multiplies in again
        return _normal(rows.to(self._device)).repeat(1, self._head.input_size // self._head.hidden_size)


def _normal(values: torch.Tensor) -> torch.Tensor:
    return values * torch.rsqrt(values.square().mean(dim=1, keepdim=True) + 1e-6)


def patterns(tensor: torch.Tensor) -> np.ndarray:
    """Bit patterns as `refimpl.bits` holds them."""
    tensor = tensor.detach().contiguous().cpu()
    if tensor.element_size() == 4:
        return tensor.view(torch.int32).numpy().view(np.uint32)
    return tensor.view(torch.int16).numpy().view(np.uint16)


def draft(executor: Executor, head: Head, order: dict[str, Any]) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Both loops and the verification of each.

    Arrays, for the full gather and then for the path: drafted tokens ``(steps, batch)``, the target's tokens at the
    same positions, and the hidden states ``(steps, batch, input_size)`` as bit patterns. ``tied``: of all rows that a
    full gather answered, those that tie at the top; None for a head with answers of its own.
    """
    device = executor.device
    step_count, batch, seed = order["steps"], order["batch"], order["seed"]
    shard = executor.shard(order)
    d2t = head.table(device)
    first = torch.from_numpy((mixed(np.arange(batch), seed + 99) % np.uint64(head.vocab_size)).astype(np.int64))

    tied = []

    def full(hidden: torch.Tensor, step: int) -> torch.Tensor:
        if head.gives_own_tokens:
            return head.full_tokens(hidden, executor.reference_group, step)
        logits = head.local_logits(hidden, shard, step)
        tied.append(executor.heads.ties(logits, shard)[:, 0] > 1)
        return full_gather(logits, shard, executor.reference_group, d2t)

    def local(hidden: torch.Tensor, step: int) -> torch.Tensor:
        if head.gives_own_tokens:
            return head.local_tokens(hidden, executor.group, step)
        table = None if d2t is None else d2t.clone()
        tokens: torch.Tensor = executor.run_path(head.local_logits(hidden, shard, step), shard, table)
        return tokens

    drafter = Toy(head, device, seed, is_target=False)
    target = Toy(head, device, seed, is_target=True)
    results = []
    for answer in (full, local):
        memory, tokens = drafter.start(batch), first.to(device)
        drafted, states = [], []
        for position in range(step_count):
            memory = drafter.step(memory, tokens, position)
            hidden = drafter.hidden_states(memory)
            states.append(hidden.clone())
            tokens = answer(hidden, position)
            drafted.append(tokens.clone())
        memory, tokens = target.start(batch), first.to(device)
        greedy = []
        for position in range(step_count):
            memory = target.step(memory, tokens, position)
            greedy.append(full(target.hidden_states(memory), position).clone())
            tokens = drafted[position]  # it is fed what was drafted, whatever it would have said
        results += [torch.stack(drafted).cpu().numpy(), torch.stack(greedy).cpu().numpy()]
        results.append(patterns(torch.stack(states)))
    return {"event": "answer", "tied": int(torch.stack(tied).sum()) if tied else None}, results
