"""Bit patterns and case files: every value and every NaN survives the way to a rank, a file and back."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from refimpl import bits
from refimpl.case import Call, Case, CaseError, file_holds
from refimpl.vocab.layouts import layout_from_sizes


def every_pattern(dtype: str) -> np.ndarray:
    if dtype == "float32":
        edges = np.arange(0, 1 << 32, 65537, dtype=np.uint64).astype(np.uint32)
        return np.concatenate([edges, bits.landmarks(dtype)])
    return np.arange(1 << 16, dtype=np.uint16)


@pytest.mark.parametrize("dtype", bits.DTYPES)
def test_decode_agrees_with_torch_on_every_pattern(dtype: str) -> None:
    patterns = every_pattern(dtype)
    plain = torch.from_numpy(patterns.view(np.int32 if dtype == "float32" else np.int16))
    theirs = plain.view(getattr(torch, dtype)).double().numpy()
    np.testing.assert_array_equal(bits.decode(patterns, dtype), theirs)


@pytest.mark.parametrize("dtype", bits.DTYPES)
def test_encode_is_the_inverse_of_decode_and_rounds_as_torch_does(dtype: str) -> None:
    patterns = every_pattern(dtype)
    numbers = patterns[~bits.is_nan(patterns, dtype)]
    np.testing.assert_array_equal(bits.encode(bits.decode(numbers, dtype), dtype), numbers)
    between = np.random.default_rng(0).normal(size=20000) * np.logspace(-9, 9, 20000)
    theirs = torch.from_numpy(between).float().to(getattr(torch, dtype)).double().numpy()
    np.testing.assert_array_equal(bits.decode(bits.encode(between.astype(np.float32), dtype), dtype), theirs)


@pytest.mark.parametrize("dtype", bits.DTYPES)
def test_ordinals_are_in_the_order_of_the_values(dtype: str) -> None:
    patterns = every_pattern(dtype)
    numbers = patterns[~bits.is_nan(patterns, dtype)]
    by_ordinal = bits.decode(numbers[np.argsort(bits.ordinal(numbers, dtype), kind="stable")], dtype)
    assert (np.diff(by_ordinal[np.isfinite(by_ordinal)]) >= 0).all()
    zeros = np.array([0, bits.sign_bit(dtype)], dtype=bits.STORAGE[dtype])
    assert bits.ordinal(zeros, dtype).tolist() == [0, 0]
    back = bits.from_ordinal(bits.ordinal(numbers, dtype), dtype)
    np.testing.assert_array_equal(bits.decode(back, dtype), bits.decode(numbers, dtype))


@pytest.mark.parametrize("dtype", bits.DTYPES)
def test_words_and_patterns(dtype: str) -> None:
    for pattern in every_pattern(dtype)[::7]:
        assert bits.parse(bits.text(int(pattern), dtype), dtype) == pattern


@pytest.mark.parametrize("word", ["nan:0x3f80", "nan:0x", "1.0000001", "many", None, True, [1]])
def test_words_that_are_no_bfloat16(word: object) -> None:
    with pytest.raises(ValueError, match=r"no value|no number|no NaN|invalid literal|could not convert"):
        bits.parse(word, "bfloat16")


def a_case(dtype: str) -> Case:
    patterns = bits.landmarks(dtype)
    layout = layout_from_sizes([3, 0, 2], extra_padding=1)
    logits = np.resize(patterns, (11, 5))
    table = np.array([4, 0, 9, 2, 2])
    first = Call(layout, dtype, logits, tuple(int(p) for p in patterns[-3:]), table)
    return Case((first, first.rows(slice(0, 0)), Call(layout, dtype, logits[:1])), bystanders=1)


def same(one: Case, other: Case) -> bool:
    return one.digest == other.digest and one.bystanders == other.bystanders and len(one.calls) == len(other.calls)


@pytest.mark.parametrize("dtype", bits.DTYPES)
def test_a_case_survives_both_file_formats(dtype: str, tmp_path: Path) -> None:
    case = a_case(dtype)
    readable = tmp_path / "case.json"
    readable.write_text(json.dumps({"case": case.to_json(), "path": "gather_pairs"}))
    loaded, note = Case.load(readable)
    assert same(case, loaded) and note["path"] == "gather_pairs"
    quick = tmp_path / "case.safetensors"
    quick.write_bytes(case.to_bytes({"path": "gather_pairs"}))
    loaded, note = Case.load(quick)
    assert same(case, loaded) and note["path"] == "gather_pairs"


def test_the_digest_sees_every_part_of_a_case() -> None:
    case = a_case("bfloat16")
    call = case.calls[0]
    other_table = Call(call.layout, call.dtype, call.logits, call.padding, np.array([4, 0, 9, 2, 3]))
    no_table = Call(call.layout, call.dtype, call.logits, call.padding)
    other_padding = Call(call.layout, call.dtype, call.logits, (0,), call.d2t)
    other_layout = Call(layout_from_sizes([2, 1, 2], 2), call.dtype, call.logits, call.padding, call.d2t)
    cases = [Case((c,)) for c in (call, other_table, no_table, other_padding, other_layout)]
    cases += [Case((call, call)), Case((call,), bystanders=2)]
    assert len({c.digest for c in cases}) == len(cases)


def with_table(d2t: list[object]) -> str:
    document = a_case("bfloat16").to_json()
    document["calls"][0]["d2t"] = d2t
    return json.dumps(document)


BROKEN = {
    "nothing": "",
    "no JSON": "{",
    "a list": "[]",
    "another format": '{"format": "other/1", "calls": []}',
    "no calls": '{"format": "argmax-parity/case/1", "calls": []}',
    "a value that is no bfloat16": json.dumps(a_case("bfloat16").to_json()).replace("256.0", "257.0"),
    "bounds with a gap": json.dumps(a_case("bfloat16").to_json()).replace("[0, 3]", "[0, 2]"),
    "more logits than any machine holds": json.dumps({**a_case("bfloat16").to_json()}).replace(
        '"padded_size": 4', '"padded_size": 100000000000'
    ),
    "more bystanders than ranks can be": json.dumps({**a_case("bfloat16").to_json(), "bystanders": 10**6}),
    "bystanders below none": json.dumps({**a_case("bfloat16").to_json(), "bystanders": -1}),
    "bounds that are no whole numbers": json.dumps(a_case("bfloat16").to_json()).replace("[0, 3]", "[0, 3.5]"),
    "a batch below none": json.dumps(a_case("bfloat16").to_json()).replace('"batch": 1,', '"batch": -1,'),
    "a size in quotes": json.dumps(a_case("bfloat16").to_json()).replace('"padded_size": 4', '"padded_size": "4"'),
    "a table with two draft ids on one target": with_table([4, 0, 9, 1, 2]),
    "a table below id 0": with_table([-5, 0, 9, 2, 2]),
    "a table beyond any memory": with_table([2**40, 0, 9, 2, 2]),
    "a table beyond int64": with_table([2**70, 0, 9, 2, 2]),
    "a table that is too short": with_table([4, 0]),
    "a table of no numbers": with_table(["a", "b", "c", "d", "e"]),
    "nested without an end": "[" * 100_000,
    "an unknown dtype": json.dumps(a_case("bfloat16").to_json()).replace("bfloat16", "float8"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_case_file_is_one_sentence_naming_it(what: str, tmp_path: Path) -> None:
    file = tmp_path / "case.json"
    file.write_text(BROKEN[what])
    with pytest.raises(CaseError, match=r"case\.json: ") as caught:
        Case.load(file)
    assert "\n" not in str(caught.value)


def test_a_truncated_or_missing_case_file_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "case.safetensors"
    file.write_bytes(a_case("float16").to_bytes({})[:-20])
    for path in (file, tmp_path / "missing.safetensors", tmp_path):
        with pytest.raises(CaseError, match=str(path)):
            Case.load(path)


def test_what_is_no_file_of_a_case_is_not_read(tmp_path: Path) -> None:
    pipe, huge = tmp_path / "pipe.json", tmp_path / "huge.json"
    os.mkfifo(pipe)
    with huge.open("w") as file:
        file.truncate(1 << 32)
    for path, said in ((pipe, "it is no regular file"), (huge, "it has 4294967296 bytes")):
        assert not file_holds(path, "case")
        with pytest.raises(CaseError, match=said):
            Case.load(path)


def test_local_logits_are_the_shards_and_padding_is_dealt_out() -> None:
    call = a_case("float16").calls[0]
    for rank, (start, end) in enumerate(call.layout.bounds):
        local = call.local_logits(rank)
        assert local.shape == (11, 4)
        np.testing.assert_array_equal(local[:, : end - start], call.logits[:, start:end])
        assert set(np.unique(local[:, end - start :])) <= set(call.padding)
    assert {int(p) for rank in range(3) for p in np.unique(call.local_logits(rank)[:, 3:])} == set(call.padding)
