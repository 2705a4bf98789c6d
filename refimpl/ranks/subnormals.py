"""Flush-to-zero is a mode of a whole thread: a path that turns it on must not change what the reference answers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

_SMALLEST = torch.tensor([1], dtype=torch.int32).view(torch.float32)


def flushed() -> bool:
    """Whether this thread takes subnormals for zeros."""
    return bool((_SMALLEST == 0).item())


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Inside, subnormals are numbers of their own; afterwards the mode is what it was."""
    if not flushed():
        yield
        return
    torch.set_flush_denormal(False)
    try:
        yield
    finally:
        torch.set_flush_denormal(True)
