"""``argmax-parity sort-table``: the table rises afterwards, draft-indexed rows moved byte for byte, nothing else."""

from __future__ import annotations

import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from fixtures.checkpoints import TensorFolder, open_draft
from refimpl import sort_table
from refimpl.cli import main
from refimpl.vocab.d2t import offsets, targets
from refimpl.vocab.mistakes import diagnose
from tests import checkpoint_writers as writers
from tests.checkpoint_writers import DRAFT, HIDDEN

BY_FREQUENCY = {
    "NVIDIA Model-Optimizer": writers.model_optimizer,
    "NeMo Automodel": writers.automodel,
    "EAGLE, if it did not sort": lambda folder: writers.eagle3(folder, writers.most_common_ids()),
    "speculators, if it did not sort": lambda folder: writers.speculators(folder, writers.special_first_ids()),
}


def raw(folder: Path, name: str) -> np.ndarray:
    tensor = TensorFolder(folder)[name]
    return np.array(tensor.patterns())


@pytest.mark.parametrize("block_bytes", [1, 200, 1 << 24])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("trainer", BY_FREQUENCY)
def test_rows_move_and_nothing_else_does(
    trainer: str, shards: int, block_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sort_table, "_BLOCK_BYTES", block_bytes)
    written = BY_FREQUENCY[trainer](tmp_path / "old")
    written.tensors["lm_head.bias"] = writers.weights(9, DRAFT, dtype=torch.float32)
    old = written.save(shards)
    (old / "tokenizer.json").write_text("{}")
    (old / "extra").mkdir()
    (old / "extra" / "notes.txt").write_text("kept")
    new = tmp_path / "new"
    assert main(["sort-table", str(old), str(new)]) == 0
    before, after = open_draft(old), open_draft(new)
    table_before, table_after = before.table(), after.table()
    assert table_before is not None and table_after is not None
    order = np.argsort(targets(table_before))
    assert targets(table_after).tolist() == np.sort(targets(table_before)).tolist()
    diagnosis = diagnose(table_after, DRAFT, before.vocab_size, after.mask())
    assert diagnosis.is_sound and diagnosis.report.is_rising
    for name in TensorFolder(old).names:
        moved = name in ("lm_head.weight", "lm_head.bias")
        if name != "d2t":
            wanted = raw(old, name)[order] if moved else raw(old, name)
            assert raw(new, name).tobytes() == wanted.tobytes(), name
    assert raw(new, "lm_head.weight").tobytes() != raw(old, "lm_head.weight").tobytes()
    assert {file.name: file.stat().st_size for file in new.iterdir() if file.is_file()} == {
        file.name: file.stat().st_size for file in old.iterdir() if file.is_file()
    }
    assert (new / "extra" / "notes.txt").read_text() == "kept"
    with safe_open(str(next(new.glob("*.safetensors"))), framework="numpy") as file:
        assert file.metadata() == {"format": "pt"}


def test_what_was_done_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = writers.model_optimizer(tmp_path / "old").save()
    assert main(["sort-table", str(old), str(tmp_path / "new")]) == 0
    out = capsys.readouterr().out
    assert f"the table rises strictly, {DRAFT} draft ids" in out
    assert f"lm_head.weight: row k is row order[k] of the old tensor on all {DRAFT} rows, byte for byte" in out


def test_draft_indexed_tensors_of_other_names_are_asked_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = writers.model_optimizer(tmp_path / "old")
    written.tensors["markov_head.weight"] = writers.weights(8, DRAFT, 4)
    written.tensors["chance.weight"] = writers.weights(7, 3, DRAFT)
    old = written.save()
    new = tmp_path / "new"
    assert main(["sort-table", str(old), str(new), "--leave=chance.weight"]) == 4
    assert "'markov_head.weight' has shape (48, 4)" in capsys.readouterr().err
    assert main(["sort-table", str(old), str(new), "--also=chance.weight", "--also=markov_head.weight"]) == 4
    assert "'chance.weight' has shape (3, 48), its first axis must be" in capsys.readouterr().err
    assert not new.exists()
    assert main(["sort-table", str(old), str(new), "--leave=chance.weight", "--also=markov_head.weight"]) == 0
    order = np.argsort(targets(raw(old, "d2t")))
    assert raw(new, "markov_head.weight").tobytes() == raw(old, "markov_head.weight")[order].tobytes()
    assert raw(new, "chance.weight").tobytes() == raw(old, "chance.weight").tobytes()


def test_rows_of_the_lm_head_cannot_be_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = writers.model_optimizer(tmp_path / "old").save(), tmp_path / "new"
    assert main(["sort-table", str(old), str(new), "--leave=lm_head.weight"]) == 4
    assert "'lm_head.weight' belongs to the lm_head: its rows are draft ids" in capsys.readouterr().err
    assert not new.exists()


def test_a_linked_folder_is_copied_as_one(tmp_path: Path) -> None:
    old, new = writers.model_optimizer(tmp_path / "old").save(), tmp_path / "new"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "notes.txt").write_text("kept")
    (old / "linked").symlink_to(tmp_path / "elsewhere")
    assert main(["sort-table", str(old), str(new)]) == 0
    assert (new / "linked" / "notes.txt").read_text() == "kept"


def test_other_files_are_read_in_blocks(tmp_path: Path) -> None:
    old, new = writers.model_optimizer(tmp_path / "old").save(), tmp_path / "new"
    with (old / "optimizer.pt").open("wb") as file:
        file.truncate(64 << 20)
    tracemalloc.start()
    try:
        assert sort_table.compare(old, new, sort_table.write_sorted(old, new)) is None
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def _exists(old: Path, new: Path) -> None:
    new.mkdir()
    (new / "precious").write_text("mine")


def _sorted(old: Path, new: Path) -> None:
    shutil.rmtree(old)
    writers.specforge(old).save()


def _wrong(old: Path, new: Path) -> None:
    written = writers.model_optimizer(old)
    written.tensors["d2t"] += torch.arange(DRAFT)
    written.save()


def _no_table(old: Path, new: Path) -> None:
    shutil.rmtree(old)
    writers.language_model(old).save()


def _torch_file(old: Path, new: Path) -> None:
    shutil.rmtree(old)
    writers.model_optimizer(old).save(suffix=".bin")


def _longer(old: Path, new: Path) -> None:
    written = writers.model_optimizer(old)
    written.tensors["lm_head.weight"] = writers.weights(3, DRAFT + 1, HIDDEN)
    written.save()


def _no_head(old: Path, new: Path) -> None:
    written = writers.model_optimizer(old)
    del written.tensors["lm_head.weight"]
    written.save()


def _no_axis(old: Path, new: Path) -> None:
    written = writers.model_optimizer(old)
    written.tensors["lm_head.weight"] = torch.zeros(())
    written.save()


def _block_scales(old: Path, new: Path) -> None:
    written = writers.model_optimizer(old)
    written.tensors["lm_head.weight_scale"] = writers.weights(3, DRAFT // 8, 2)
    written.save()


@pytest.mark.parametrize(
    ("arrange", "message"),
    [
        (_no_head, "holds no lm_head, whose rows would have to move with the table"),
        (_no_axis, "is no table that sorting would mend: stale-table"),
        (_block_scales, "'lm_head.weight_scale' has shape (6, 2): it belongs to the lm_head and has no row for each"),
        (_exists, "new exists already; name a folder that does not"),
        (_sorted, "'d2t' in model.safetensors rises strictly already"),
        (_wrong, "is no table that sorting would mend: ids-for-offsets"),
        (_no_table, "holds no 'd2t': there is no table to sort"),
        (_torch_file, "pytorch_model.bin is no safetensors file"),
        (_longer, "is no table that sorting would mend: stale-table"),
        (lambda old, new: shutil.rmtree(old), "is no folder; give the one that holds config.json"),
    ],
    ids=lambda value: value.__name__.strip("_<>") if callable(value) else "",
)
def test_refusals(arrange: object, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = writers.model_optimizer(tmp_path / "old").save(), tmp_path / "new"
    arrange(old, new)  # type: ignore[operator]
    before = sorted(tmp_path.rglob("*"))
    assert main(["sort-table", str(old), str(new)]) == 4
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = writers.model_optimizer(tmp_path / "old").save()
    assert main(["sort-table", str(old), str(tmp_path / "no" / "such" / "new")]) == 4
    assert "is no folder; make it first" in capsys.readouterr().err
    assert main(["sort-table", str(old), str(old / "new")]) == 4
    assert "name a folder outside it" in capsys.readouterr().err
    assert [place.name for place in tmp_path.iterdir()] == ["old"]


def test_a_copy_that_went_wrong_is_seen(tmp_path: Path) -> None:
    old, new = writers.model_optimizer(tmp_path / "old").save(), tmp_path / "new"
    (old / "earlier").mkdir()
    shutil.copy(old / "model.safetensors", old / "earlier")
    done = sort_table.write_sorted(old, new)
    assert sort_table.compare(old, new, done) is None
    for name, row in [("lm_head.weight", 5), ("norm.weight", 3), ("d2t", 7)]:
        tensor = TensorFolder(new)[name]
        place = tensor.offset + row * (tensor.num_bytes // tensor.shape[0])
        content = bytearray(tensor.file.read_bytes())
        content[place] ^= 1
        tensor.file.write_bytes(content)
        assert name in str(sort_table.compare(old, new, done))
        content[place] ^= 1
        tensor.file.write_bytes(content)
    assert sort_table.compare(old, new, done) is None
    (new / "earlier" / "model.safetensors").write_bytes(b"")
    assert "earlier/model.safetensors" in str(sort_table.compare(old, new, done))
    shutil.copy(old / "earlier" / "model.safetensors", new / "earlier")
    (new / "config.json").write_text("{}")
    assert "config.json" in str(sort_table.compare(old, new, done))


def test_order_is_that_of_the_targets() -> None:
    ids = np.array([7, 2, 9, 4])
    assert targets(offsets(np.sort(ids))).tolist() == [2, 4, 7, 9]
