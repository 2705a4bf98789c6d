"""The loader of recorded rows: good files give the right bits, every broken one its own sentence."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fixtures import recorded
from fixtures.record_minilm import RecordingError, draw, load_matrix, record, save
from fixtures.recorded import RecordedError, load_recorded
from refimpl import bits
from refimpl.oracle import tied_set

SHIPPED = Path(__file__).resolve().parents[1] / "fixtures" / "logits" / "minilm-l6-v2.safetensors"

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def _write(tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> Path:
        path = tmp_path / "rows.safetensors"
        save_file(tensors, path, metadata)
        return path

    return _write


def logits(rows: int = 2, vocab: int = 4, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(rows * vocab, dtype=torch.float32).reshape(rows, vocab).to(dtype)


def sentence(path: Path) -> str:
    with pytest.raises(RecordedError) as caught:
        load_recorded(path)
    text = str(caught.value)
    assert "\n" not in text and path.name in text and "; " in text, text
    return text


class TestGoodFiles:
    @pytest.mark.parametrize("dtype", bits.DTYPES)
    def test_patterns_are_those_of_the_file(self, write: Write, dtype: str) -> None:
        patterns = bits.landmarks(dtype)[:48].reshape(4, 12)  # NaNs, infinities, both zeros and subnormals
        signed = patterns.view(np.int32 if dtype == "float32" else np.int16)
        tensor = torch.from_numpy(signed).view(getattr(torch, dtype))
        # A tensor of one byte an element beside it: what follows in the file need not be aligned.
        rows = load_recorded(write({"a": torch.zeros(3, dtype=torch.uint8), "logits": tensor}, {"by": "hand"}))
        assert (rows.name, rows.dtype, rows.source) == ("rows.safetensors", dtype, {"by": "hand"})
        assert (rows.num_rows, rows.vocab_size, rows.d2t) == (4, 12, None)
        assert rows.logits.dtype == bits.STORAGE[dtype]
        np.testing.assert_array_equal(rows.logits, patterns)

    def test_unaligned_data(self, tmp_path: Path) -> None:
        head = json.dumps({"logits": {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]}}).encode()
        head += b" " * (-len(head) % 8 + 3)
        path = tmp_path / "rows.safetensors"
        path.write_bytes(len(head).to_bytes(8, "little") + head + np.array([1.5, -2.0], np.float32).tobytes())
        np.testing.assert_array_equal(bits.decode(load_recorded(path).logits, "float32"), [[1.5, -2.0]])

    def test_table(self, write: Write) -> None:
        d2t = torch.tensor([5, 1, 7, 3]) - torch.arange(4)
        t2d = torch.zeros(9, dtype=torch.bool)
        t2d[[5, 1, 7, 3]] = True
        for tensors in ({"d2t": d2t}, {"d2t": d2t, "t2d": t2d}):
            rows = load_recorded(write({"logits": logits(), **tensors}))
            assert rows.d2t is not None and rows.d2t.dtype == np.int64
            np.testing.assert_array_equal(rows.d2t + np.arange(4), [5, 1, 7, 3])

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_hidden_states_are_projected_in_the_files_dtype(
        self, write: Write, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        hidden = torch.randint(-3, 4, (5, 8), generator=generator).to(dtype)
        weight = torch.randint(-3, 4, (11, 8), generator=generator).to(dtype)
        monkeypatch.setattr(recorded, "_BLOCK_VALUES", 25)  # two rows at a time
        rows = load_recorded(write({"hidden_states": hidden, "lm_head.weight": weight}))
        assert rows.dtype == str(dtype).removeprefix("torch.")
        exact = hidden.double() @ weight.double().T  # small whole numbers: no dtype rounds them
        np.testing.assert_array_equal(bits.decode(rows.logits, rows.dtype), exact.numpy())

    def test_logits_win_over_hidden_states(self, write: Write) -> None:
        rows = load_recorded(write({"logits": logits(), "hidden_states": torch.ones(1, 1), "lm_head.weight": logits()}))
        np.testing.assert_array_equal(bits.decode(rows.logits, rows.dtype), logits().numpy())

    def test_symbolic_link(self, write: Write, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(write({"logits": logits()}))
        assert load_recorded(tmp_path / "link").num_rows == 2


class TestNoFile:
    def test_missing(self, tmp_path: Path) -> None:
        assert "there is no file" in sentence(tmp_path / "nothing.safetensors")

    def test_name_too_long(self) -> None:
        assert "cannot be read" in sentence(Path("x" * 300))

    def test_folder(self, tmp_path: Path) -> None:
        assert "is a folder" in sentence(tmp_path)

    def test_pipe(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")  # to open it would wait for ever
        assert "no regular file" in sentence(tmp_path / "pipe")

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_unreadable(self, write: Write) -> None:
        path = write({"logits": logits()})
        path.chmod(0)
        assert "cannot be read (Permission denied)" in sentence(path)

    @pytest.mark.parametrize("kept", [0, 5, 40, -1])
    def test_truncated(self, write: Write, kept: int) -> None:
        path = write({"logits": logits()})
        path.write_bytes(path.read_bytes()[:kept])
        assert "no whole safetensors file" in sentence(path)

    @pytest.mark.parametrize(
        "content", [b"x" * 100, (2).to_bytes(8, "little") + b"[]", (9).to_bytes(8, "little") + b"\xff" * 9]
    )
    def test_corrupt(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "rows.safetensors"
        path.write_bytes(content)
        assert "no whole safetensors file" in sentence(path)

    def test_torch_file(self, tmp_path: Path) -> None:
        path = tmp_path / "rows.pt"
        torch.save({"logits": logits()}, path)
        assert "torch.save writes another format" in sentence(path)


def _table(d2t: list[int], t2d: list[bool] | None = None) -> dict[str, torch.Tensor]:
    tensors = {"logits": logits(), "d2t": torch.tensor(d2t)}
    return tensors if t2d is None else {**tensors, "t2d": torch.tensor(t2d)}


def _projected(hidden: torch.Tensor, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"hidden_states": hidden, "lm_head.weight": weight}


BAD = {
    "no tensor": ({}, ["holds no tensor", "'logits'", "'hidden_states'", "'lm_head.weight'"]),
    "no known tensor": ({"w": logits(), "v": logits()}, ["holds 'v', 'w'", "neither 'logits'"]),
    "many tensors": ({f"w{i}": torch.ones(1) for i in range(9)}, ["'w5' and 3 more"]),
    "no lm_head": ({"hidden_states": logits()}, ["'hidden_states' without 'lm_head.weight'"]),
    "no hidden states": ({"lm_head.weight": logits()}, ["'lm_head.weight' without 'hidden_states'"]),
    "one dimension": ({"logits": torch.ones(4)}, ["'logits'", "(4,)", "(rows, vocab)"]),
    "three dimensions": ({"logits": torch.ones(2, 3, 4)}, ["(2, 3, 4)", "(rows, vocab)", "flatten(0, -2)"]),
    "integers": ({"logits": logits().long()}, ["'logits'", "I64", "F32, BF16, F16"]),
    "bools": ({"logits": logits().bool()}, ["BOOL"]),
    "float64": ({"logits": logits().double()}, ["'logits'", "F64", "F32, BF16, F16"]),
    "float8": ({"logits": logits().to(torch.float8_e4m3fn)}, ["F8_E4M3", "F32, BF16, F16"]),
    "no rows": ({"logits": torch.ones(0, 4)}, ["'logits'", "(0, 4)", "rows axis is 0"]),
    "no vocabulary": ({"logits": torch.ones(4, 0)}, ["(4, 0)", "vocab axis is 0"]),
    "hidden rank": (_projected(torch.ones(4), logits()), ["'hidden_states'", "(4,)", "(rows, hidden)"]),
    "hidden float64": (_projected(logits().double(), logits().double()), ["'hidden_states'", "F64"]),
    "hidden nothing": (_projected(torch.ones(2, 0), torch.ones(3, 0)), ["(2, 0)", "hidden axis is 0"]),
    "weight float8": (_projected(logits(), logits().to(torch.float8_e5m2)), ["'lm_head.weight'", "F8_E5M2"]),
    "dtypes": (_projected(logits(), logits().half()), ["'hidden_states' is float32", "'lm_head.weight' is float16"]),
    "hidden size": (_projected(torch.ones(2, 4), torch.ones(9, 5)), ["hidden size 4", "'lm_head.weight' 5"]),
    "d2t length": (_table([0, 0, 0]), ["'d2t'", "(3,)", "(4,)", "4 columns"]),
    "d2t rank": ({"logits": logits(), "d2t": torch.zeros(1, 4).long()}, ["'d2t'", "(1, 4)", "(4,)"]),
    "d2t dtype": ({"logits": logits(), "d2t": torch.zeros(4).int()}, ["'d2t'", "I32", "I64"]),
    "d2t floats": ({"logits": logits(), "d2t": torch.zeros(4)}, ["'d2t'", "F32", "I64"]),
    "negative target": (_table([0, 0, -3, 0]), ["'d2t'", "target -1 of draft id 2"]),
    "target beyond t2d": (_table([0, 0, 0, 3], [True] * 5), ["target 6 of draft id 3", "vocabulary of 5"]),
    "wild target": (_table([0, 0, 0, 1 << 40]), ["draft id 3", f"{(1 << 40) + 3}", f"{1 << 24}"]),
    "overflowing target": (_table([0, 0, 0, (1 << 63) - 1]), ["draft id 3", "negative"]),
    "duplicate target": (_table([0, 1, 0, 0]), ["draft ids 1 and 2 both map to target 2"]),
    "t2d alone": ({"logits": logits(), "t2d": torch.ones(9).bool()}, ["'t2d' without 'd2t'"]),
    "t2d dtype": ({**_table([0] * 4), "t2d": torch.ones(4).to(torch.uint8)}, ["'t2d'", "U8", "BOOL"]),
    "t2d rank": ({**_table([0] * 4), "t2d": torch.ones(2, 2).bool()}, ["'t2d'", "(2, 2)", "(target_vocab,)"]),
    "t2d empty": ({**_table([0] * 4), "t2d": torch.ones(0).bool()}, ["'t2d'", "(0,)"]),
    "t2d short": (_table([0] * 4, [True] * 3), ["'t2d' of length 3", "target 3 of draft id 3"]),
    "t2d says more": (_table([0] * 4, [True] * 5), ["'t2d' of length 5", "t2d is true at target 4"]),
    "t2d says less": (_table([0] * 4, [True, False, True, True]), ["t2d is false at target 1"]),
}


@pytest.mark.parametrize(("tensors", "words"), BAD.values(), ids=BAD)
def test_bad_tensors(write: Write, tensors: dict[str, torch.Tensor], words: list[str]) -> None:
    text = sentence(write(tensors))
    assert [word for word in words if word not in text] == [], text


def test_too_many_logits_to_compute(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "_MAX_COMPUTED_BYTES", 100)
    text = sentence(write(_projected(torch.ones(5, 2), torch.ones(8, 2))))
    assert "the 5 rows" in text and "at most 3 rows" in text


class TestShippedFile:
    def test_is_what_its_readme_says(self) -> None:
        rows = load_recorded(SHIPPED)
        assert (rows.dtype, rows.logits.shape, rows.d2t) == ("bfloat16", (64, 30522), None)
        tied = tied_set(bits.decode(rows.logits, rows.dtype)).sum(axis=1) > 1
        assert tied[48:].all() and not tied[:48].any()
        assert rows.vocab_size % 64
        source = json.loads(rows.source["recording"])
        assert source["rows_drawn"] == "322" and source["seed"] == "0"
        assert (source["package_licence"], source["model_licence"]) == ("MIT", "apache-2.0")

    def test_is_recorded_again_bit_for_bit(self, tmp_path: Path) -> None:
        try:
            matrix, source = load_matrix()
        except RecordingError as error:
            pytest.skip(str(error))
        patterns, numbers = record(matrix, "bfloat16", 64, 0)
        save(tmp_path / "again.safetensors", patterns, "bfloat16", {**source, **numbers})
        np.testing.assert_array_equal(
            load_recorded(tmp_path / "again.safetensors").logits, load_recorded(SHIPPED).logits
        )


class TestRecording:
    MATRIX = np.random.default_rng(0).standard_normal((500, 16))

    @pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
    def test_ties_are_found_where_they_are(self, dtype: str) -> None:
        for _, (row, tied) in zip(range(300), draw(self.MATRIX, dtype, 1), strict=False):
            everywhere = tied_set(bits.decode(bits.encode(row, dtype), dtype))
            np.testing.assert_array_equal(tied, np.flatnonzero(everywhere))

    def test_mix(self, tmp_path: Path) -> None:
        patterns, numbers = record(self.MATRIX, "bfloat16", 20, 3)
        save(tmp_path / "m.safetensors", patterns, "bfloat16", numbers)
        rows = load_recorded(tmp_path / "m.safetensors")
        assert json.loads(rows.source["recording"]) == numbers
        tied = tied_set(bits.decode(rows.logits, rows.dtype)).sum(axis=1) > 1
        assert rows.logits.shape == (20, 500) and tied[15:].all()
        first = next(draw(self.MATRIX, "bfloat16", 3))[0]
        np.testing.assert_array_equal(rows.logits[0], bits.encode(first, "bfloat16"))
        assert numbers["rows_as_drawn"] == f"15, the first ones, {tied[:15].sum()} of them tied at the top"

    def test_gives_up_where_nothing_ties(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("fixtures.record_minilm._MOST_DRAWN", 40)
        with pytest.raises(RecordingError, match="only 0 of 4 rows that tie in float32 were among 40 drawn"):
            record(self.MATRIX, "float32", 16, 0)
