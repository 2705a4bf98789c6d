"""The int64 keys of the max-reduction: every 16-bit pattern, float32 neighbours, id extremes, and refusals."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from refimpl.contract import UnsupportedInput, VocabShard
from refimpl.paths.gather_pairs import gather_pairs
from refimpl.paths.reduce_max_key import INFINITY, MAX_ID, NO_CANDIDATE, decode_ids, encode_keys, reduce_max_key
from refimpl.paths.target_tie_break import target_tie_break

IDS = [0, 1, 2, 255, 256, 257, 2**11, 2**16 - 1, 2**16, 2**24, 2**24 + 1, 2**30, MAX_ID - 1, MAX_ID]
FLOAT32_PATTERNS = st.integers(0, 2**32 - 1) | st.sampled_from(
    [0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x00800000, 0x3F800000, 0xBF800000]
    + [0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7F800001, 0xFF800001, 0x7FC00000, 0xFFFFFFFF]
)


def float32(pattern: int) -> float:
    value: float = struct.unpack("<f", struct.pack("<I", pattern))[0]
    return value


def from_patterns(patterns: list[int]) -> torch.Tensor:
    return torch.from_numpy(np.array(patterns, dtype=np.uint32).view(np.float32))


def beats(value: float, token: int, other_value: float, other_token: int) -> bool:
    """The order of candidates: NaN first, then value, then lower id."""
    if np.isnan(value) != np.isnan(other_value):
        return bool(np.isnan(value))
    if value != other_value and not np.isnan(value):
        return value > other_value
    return token < other_token


def key_of(values: torch.Tensor) -> torch.Tensor:
    return encode_keys(values, torch.zeros(values.shape, dtype=torch.int64))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_16_bit_pattern_keeps_its_place(dtype: torch.dtype) -> None:
    values = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    keys, numbers = key_of(values), values.double()
    is_nan = numbers.isnan()
    assert int(keys[is_nan].min()) == int(keys[is_nan].max()) > int(keys[~is_nan].max())
    # Sorted by value, keys step up exactly where values do: the two zeros are the only equals.
    ordered, order = numbers[~is_nan].sort()
    assert torch.equal(keys[~is_nan][order].diff().sign(), ordered.diff().sign().long())
    assert int((ordered.diff() == 0).sum()) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_id_comes_back_beside_every_16_bit_pattern(dtype: torch.dtype) -> None:
    values = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    ids = torch.tensor(IDS).repeat(len(values))
    assert torch.equal(decode_ids(encode_keys(values.repeat_interleave(len(IDS)), ids)), ids)


def test_high_bits_tell_the_infinities() -> None:
    values = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16)
    high = key_of(values) >> 32
    assert torch.equal(high == -INFINITY, values == -torch.inf)
    assert torch.equal(high == INFINITY, values == torch.inf)


@given(FLOAT32_PATTERNS, FLOAT32_PATTERNS | st.integers(-2, 2), st.sampled_from(IDS), st.sampled_from(IDS))
def test_float32_keys_order_as_candidates(pattern: int, other: int, token: int, other_token: int) -> None:
    if -2 <= other <= 2:  # a neighbour in the bit pattern
        other = (pattern + other) % 2**32
    keys = encode_keys(from_patterns([pattern, other]), torch.tensor([token, other_token]))
    value, other_value = float32(pattern), float32(other)
    assert bool(keys[0] > keys[1]) == beats(value, token, other_value, other_token)
    assert bool(keys[1] > keys[0]) == beats(other_value, other_token, value, token)


def test_id_never_outweighs_the_smallest_step_of_value() -> None:
    patterns = [0xFF800000, 0xFF7FFFFF, 0xBF800000, 0x80000001, 0, 1, 0x00800000, 0x3F800000, 0x7F7FFFFF, 0x7F800000]
    lowest = [int(key) for key in encode_keys(from_patterns(patterns), torch.full((len(patterns),), MAX_ID))]
    highest = [int(key) for key in key_of(from_patterns(patterns))]
    assert all(high < low for high, low in zip(highest, lowest[1:], strict=False))


def test_subnormals_survive_flush_to_zero() -> None:
    patterns = [0x80000002, 0x80000001, 0x00000001, 0x00000002]
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor has no flush-to-zero mode")
    try:
        keys = key_of(from_patterns(patterns))
    finally:
        torch.set_flush_denormal(False)
    assert bool((keys.diff() > 0).all())


def test_no_candidate_is_below_every_key() -> None:
    keys = encode_keys(from_patterns([0xFF800000, 0xFFFFFFFF]), torch.tensor([MAX_ID, MAX_ID]))
    assert int(keys.min()) > NO_CANDIDATE


def test_empty_batch() -> None:
    keys = encode_keys(torch.empty(0), torch.empty(0, dtype=torch.int64))
    assert keys.dtype == torch.int64
    assert decode_ids(keys).shape == (0,)


# The refusals: decided before any collective, so no group is there to be used.

Path = Callable[..., torch.Tensor]


def refuses(path: Path, vocab_size: int, d2t: torch.Tensor | None = None) -> bool:
    shard = VocabShard(0, 2, ((0, 1), (1, vocab_size)), vocab_size - 1, vocab_size)
    no_group: Any = None
    try:
        path(torch.empty(0, vocab_size - 1), shard, no_group, d2t)
    except UnsupportedInput:
        return True
    except ValueError as error:
        assert "process group" in str(error)
        return False  # it went on to the collective
    raise AssertionError("it returned without a collective")


@pytest.mark.parametrize(
    ("path", "limit"), [(gather_pairs, 2**24), (reduce_max_key, MAX_ID), (target_tie_break, MAX_ID)]
)
def test_vocabularies_beyond_the_last_id_are_refused(path: Path, limit: int) -> None:
    assert not refuses(path, limit + 1)
    assert refuses(path, limit + 2)


def test_targets_beyond_the_last_id_are_refused() -> None:
    assert not refuses(target_tie_break, 3, torch.tensor([0, 0, MAX_ID - 2]))
    assert refuses(target_tie_break, 3, torch.tensor([0, 0, MAX_ID - 1]))
    assert refuses(target_tie_break, 3, torch.tensor([0, -2, 0]))
