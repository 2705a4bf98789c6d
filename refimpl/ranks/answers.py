"""What code under test gave on a rank, in plain values for the wire: a refusal, what it raised, a result's form."""

from __future__ import annotations

import traceback
from typing import Any

import numpy as np
import torch

# A head of plain values, and the arrays that it names by their place.
Answer = tuple[dict[str, Any], list[np.ndarray]]
_CHARACTERS = 4000
_FRAMES = 6


def words(error: BaseException) -> str:
    """An exception's message; those of code under test may fail even at that."""
    try:
        # Control characters are not for somebody's terminal.
        return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in str(error)[:_CHARACTERS])
    except Exception:
        return "(its message cannot be printed)"


def stack(error: BaseException) -> str:
    """The last frames of an exception's traceback."""
    return "".join(traceback.format_exception(error)[-_FRAMES:])[-_CHARACTERS:]


def refused(refusal: BaseException, issued: int = 0) -> dict[str, Any]:
    """The outcome of a call that was declined after ``issued`` collectives."""
    return {"status": "refused", "message": words(refusal), "issued": issued}


def raised(error: BaseException) -> dict[str, Any]:
    """The outcome of a call that raised."""
    return {"status": "raised", "type": type(error).__name__, "message": words(error), "traceback": stack(error)}


def wrong_form(tokens: Any, shape: tuple[int, ...], device: torch.device) -> str | None:
    """What keeps a result from being an int64 tensor of this shape on this device."""
    if not isinstance(tokens, torch.Tensor):
        return f"returned a {type(tokens).__name__}, expected an int64 tensor of shape {shape}"
    if tokens.dtype != torch.int64 or tuple(tokens.shape) != shape:
        dtype = str(tokens.dtype).removeprefix("torch.")
        return f"returned {dtype} of shape {tuple(tokens.shape)}, expected int64 of shape {shape}"
    if tokens.device != device:
        return f"returned a tensor on {tokens.device}, expected one on {device}"
    return None


def wrong_pair(got: Any, shape: tuple[int, ...], device: torch.device) -> str | None:
    """What keeps a result from being a pair of values, floating-point, and int64 ids of this shape on this device."""
    if not isinstance(got, (tuple, list)) or len(got) != 2 or not all(isinstance(part, torch.Tensor) for part in got):
        return f"returned a {type(got).__name__}, expected a pair of tensors: values and ids"
    for name, part, fits in (
        ("values", got[0], got[0].is_floating_point()),
        ("ids", got[1], got[1].dtype == torch.int64),
    ):
        if not fits or tuple(part.shape) != shape:
            words = f"{str(part.dtype).removeprefix('torch.')} of shape {tuple(part.shape)}"
            return f"returned {name} as {words}, expected {'int64' if name == 'ids' else 'floats'} of shape {shape}"
        if part.device != device:
            return f"returned {name} on {part.device}, expected {device}"
    return None
