"""Counts what a path sends: a dispatch mode over torch's c10d operations.

It sees every ``torch.distributed`` collective and send of the thread it runs in, functional and asynchronous ones too.
It cannot see other threads, custom kernels, or calls on a backend object; the group's sequence number, compared by
the judge, tells when there was more than it saw.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class CollectiveCounter(TorchDispatchMode):
    """Records ``(operation, bytes)`` of each c10d operation issued while it is active.

    Bytes are those of the largest tensor argument: the gathered result of an all-gather, the payload of an
    all-reduce. That is what grows with the vocabulary when a path gathers logits.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Newer torch would import its compiler for every mode, seconds in every fresh rank, to keep it out of this."""
        return False

    def __init__(self, *others: str) -> None:
        """``others``: prefixes of further operations that count, as in ``_C::shm_``: an engine's own collectives."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._others = others
        self.seen: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("c10d", "_c10d_functional") or (self._others and func.name().startswith(self._others)):
            sizes = [_bytes(argument) for argument in args]
            name = func.name().split("::")[-1]
            if not name.startswith("wait"):
                self.seen.append((name, max(sizes, default=0)))
        return func(*args, **(kwargs or {}))


def _bytes(argument: Any) -> int:
    if isinstance(argument, torch.Tensor):
        return argument.numel() * argument.element_size()
    if isinstance(argument, (list, tuple)):
        return sum(_bytes(item) for item in argument)
    return 0
