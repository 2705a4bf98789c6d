"""A drafting loop on the ranks: a toy draft model with the head under test, drafting several tokens in a row, and a
greedy verification of what it drafted.

The toy draft model keeps a memory and embeds a token as the row of the lm_head that it makes likely next. The toy
target is the same model, which on some (position, token) pairs expects another successor: so it accepts most drafts and
refuses some. It verifies as engines do: all positions are fed the drafted tokens, and the first position whose greedy
token is not the drafted one ends what is accepted.

The loop is run twice, each answer fed its own tokens back: by the full gather, and by the path under test.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from refimpl.contract import UnsupportedInput
from refimpl.drawn import mixed
from refimpl.head import Head, torch_dtype
from refimpl.ranks import answers
from refimpl.ranks.outcome import NAN_ROW

if TYPE_CHECKING:
    from refimpl.ranks.executor import Executor

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
    """Both loops and the verification of each; they end where either answer gives no tokens.

    The outcome of each step of the path is a call of the answer. ``loops`` names these arrays, for the full gather and
    then for the path: drafted tokens ``(steps, batch)``, the target's tokens at the same positions, and the hidden
    states ``(steps, batch, input_size)`` as bit patterns; last, for a head whose logits the suite sees, how many of all
    rows that a full gather answered tie at the top, ``(1,)``.
    """
    loops = _Loops(executor, head, order)
    try:
        loops.run()
    except UnsupportedInput as refusal:
        loops.outcomes.append(answers.refused(refusal))
    except BaseException as error:  # of the head, outside of the path
        loops.outcomes.append(answers.raised(error))
    arrays = loops.arrays if loops.complete else []
    return {"event": "done", "calls": loops.outcomes, "loops": list(range(len(arrays)))}, arrays


class _Loops:
    def __init__(self, executor: Executor, head: Head, order: dict[str, Any]) -> None:
        self._executor, self._head, self._order = executor, head, order
        self._shard = executor.shard(order)
        self._d2t = head.table(executor.device)
        self._tied: list[torch.Tensor] = []
        self.outcomes: list[dict[str, Any]] = []
        self.arrays: list[np.ndarray] = []
        self.complete = False

    def run(self) -> None:
        device, steps, seed = self._executor.device, self._order["steps"], self._order["seed"]
        numbers = np.array(self._order["sequences"], np.int64)
        first = torch.from_numpy((mixed(numbers, seed + 99) % np.uint64(self._head.vocab_size)).astype(np.int64))
        drafter = Toy(self._head, device, seed, is_target=False)
        target = Toy(self._head, device, seed, is_target=True)
        for name, answer in (("the full gather", self._full), ("the path", self._local)):
            memory, tokens = drafter.start(len(numbers)), first.to(device)
            drafted, states = [], []
            for position in range(steps):
                self._reach(position, name)
                memory = drafter.step(memory, tokens, position)
                hidden = drafter.hidden_states(memory)
                states.append(hidden.clone())
                answered = answer(hidden, position)
                if answered is None:
                    return
                tokens = answered
                drafted.append(tokens.clone())
            memory, tokens = target.start(len(numbers)), first.to(device)
            greedy = []
            for position in range(steps):
                self._reach(position, f"the verification of {name}'s tokens")
                memory = target.step(memory, tokens, position)
                greedy.append(self._full(target.hidden_states(memory), position).clone())
                tokens = drafted[position]  # it is fed what was drafted, whatever it would have said
            self.arrays += [torch.stack(drafted).cpu().numpy(), torch.stack(greedy).cpu().numpy()]
            self.arrays.append(patterns(torch.stack(states)))
        if self._tied:
            tied, of_nan = torch.cat(self._tied).unbind(dim=1)
            self.arrays.append(np.array([int(tied.sum()), int((tied | of_nan).all())]))
        self.complete = True

    def _reach(self, position: int, what: str) -> None:
        self._executor.tell({"event": "reached", "step": position, "of": what})

    def _full(self, hidden: torch.Tensor, step: int) -> torch.Tensor:
        head, executor = self._head, self._executor
        if head.gives_own_tokens:
            return head.full_tokens(hidden, executor.reference_group, step)
        logits = head.local_logits(hidden, self._shard, step)
        ties = executor.heads.ties(logits, self._shard)
        self._tied.append(torch.stack([ties[:, 0] > 1, ties[:, 2] == NAN_ROW], dim=1))
        return executor.run_reference(logits, self._shard, self._d2t)

    def _local(self, hidden: torch.Tensor, step: int) -> torch.Tensor | None:
        """The path's tokens, or None where it gave none; how the step ended stands in the outcomes."""
        head, executor = self._head, self._executor
        outcome: dict[str, Any] = {}
        if head.gives_own_tokens:
            tokens = executor.own_call(lambda: head.local_tokens(hidden.clone(), executor.group, step), hidden, outcome)
        else:
            logits = head.local_logits(hidden, self._shard, step)
            table = None if self._d2t is None else self._d2t.cpu()
            tokens = executor.one_call(logits.clone(), logits, self._shard, table, outcome, False, None)
        self.outcomes.append(outcome)
        return tokens
