"""Checkpoint folders of each layout are read for what they are; broken ones get one sentence that names the fault."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fixtures.checkpoints import CheckpointError, open_draft
from fixtures.checkpoints.head import load_named
from refimpl import certifying
from refimpl.benchmark_memory import write_checkpoint
from refimpl.vocab.d2t import targets
from refimpl.vocab.mistakes import diagnose
from tests import checkpoint_writers as writers
from tests.checkpoint_writers import DRAFT, HIDDEN, TARGET
from tests.test_certify_command import GivenOptions


def same_bytes(found: np.ndarray, wanted: torch.Tensor) -> bool:
    return found.tobytes() == wanted.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("layout", writers.WITH_TABLE)
def test_layouts_with_a_table(layout: str, shards: int, tmp_path: Path) -> None:
    written = writers.WITH_TABLE[layout](tmp_path / "draft")
    draft = open_draft(written.save(shards))
    assert draft.layout == layout
    assert (draft.vocab_size, draft.draft_vocab_size, draft.hidden_size) == (TARGET, DRAFT, HIDDEN)
    assert (draft.dtype, draft.head_source, draft.norm_eps) == ("bfloat16", "its own", 1e-5)
    assert same_bytes(draft.lm_head.patterns(), written.tensors["lm_head.weight"])
    assert draft.steps[0].norm is not None
    norm = next(tensor for name, tensor in written.tensors.items() if name in ("norm.weight", "model.norm.weight"))
    assert same_bytes(draft.steps[0].norm.patterns(), norm)
    table = draft.table()
    assert table is not None and table.tolist() == written.tensors["d2t"].tolist()
    assert (draft.mask() is None) == (layout == "NVIDIA Model-Optimizer")
    sorts = layout not in ("NVIDIA Model-Optimizer", "NeMo Automodel")
    report = diagnose(table, DRAFT, TARGET, draft.mask())
    assert report.is_sound, report.sentences
    assert report.report.is_rising == sorts
    index = {"model.safetensors.index.json"} if shards > 1 else set()
    assert {file.name for file in draft.files} >= {"config.json"} | index


@pytest.mark.parametrize("layout", writers.FULL_VOCABULARY)
def test_layouts_of_a_full_vocabulary(layout: str, tmp_path: Path) -> None:
    draft = open_draft(writers.FULL_VOCABULARY[layout](tmp_path / "draft").save(2))
    assert draft.layout == layout
    assert (draft.vocab_size, draft.draft_vocab_size, draft.table()) == (TARGET, TARGET, None)
    assert draft.norm_offset == (1.0 if "Qwen" in layout else 0.0)
    assert draft.head_source.startswith("its own" if "DeepSeek" in layout else "tied to ")


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("layout", writers.WITH_TARGET)
def test_layouts_that_share_the_targets_head(layout: str, tied: bool, tmp_path: Path) -> None:
    written = writers.WITH_TARGET[layout](tmp_path / "draft")
    folder = written.save()
    with pytest.raises(CheckpointError, match=r"holds no 'lm_head.weight'.*--target-checkpoint=DIR"):
        open_draft(folder)
    target = writers.language_model(tmp_path / "target", tied)
    draft = open_draft(folder, target.save(2))
    assert draft.layout == layout
    assert draft.head_source == ("the target's, tied to model.embed_tokens.weight" if tied else "the target's")
    name = "model.embed_tokens.weight" if tied else "lm_head.weight"
    assert same_bytes(draft.lm_head.patterns(), target.tensors[name])
    assert (draft.steps[0].norm is None) == (layout == "EAGLE (1 or 2)")
    assert any("target" in str(file.parent) for file in draft.files)


def test_steps_have_their_own_heads_or_the_models(tmp_path: Path) -> None:
    written = writers.mtp_deepseek(tmp_path / "draft", layers=3)
    del written.tensors["model.layers.4.shared_head.head.weight"]
    draft = open_draft(written.save())
    names = [step.lm_head.name for step in draft.steps]
    assert names == [
        f"model.layers.{layer}.shared_head.head.weight" if layer != 4 else "lm_head.weight" for layer in (3, 4, 5)
    ]
    assert [step.norm.name.split(".")[2] for step in draft.steps if step.norm] == ["3", "4", "5"]
    assert draft.head_source == "its own and the model's"


@pytest.mark.parametrize("own", [0, 1])
def test_steps_without_a_head_take_the_targets(own: int, tmp_path: Path) -> None:
    written = writers.mtp_deepseek(tmp_path / "draft", layers=2)
    for name in ["lm_head.weight", *(f"model.layers.{layer}.shared_head.head.weight" for layer in (3 + own, 4))]:
        written.tensors.pop(name, None)
    target = writers.language_model(tmp_path / "target", tied=False).save()
    draft = open_draft(written.save(), target)
    assert draft.head_source == ("its own and the target's" if own else "the target's")
    config = GivenOptions(tmp_path, {"--checkpoint": str(written.folder), "--target-checkpoint": str(target)})
    (name,) = certifying.checkpoint_heads(config)
    assert load_named(name).steps == 2  # the ranks find the target as well


def test_a_torch_file_gives_the_same_draft(tmp_path: Path) -> None:
    plain = open_draft(writers.eagle3(tmp_path / "plain").save())
    torch_file = open_draft(writers.eagle3(tmp_path / "torch").save(suffix=".bin"))
    for tensor in ("lm_head", "d2t", "t2d"):
        assert getattr(torch_file, tensor).patterns().tobytes() == getattr(plain, tensor).patterns().tobytes()
        assert getattr(torch_file, tensor).dtype == getattr(plain, tensor).dtype


def test_an_old_file_whose_vocab_size_is_the_drafts(tmp_path: Path) -> None:
    written = writers.eagle3(tmp_path / "draft")
    del written.config["draft_vocab_size"]
    written.config["vocab_size"] = DRAFT
    draft = open_draft(written.save())
    assert (draft.vocab_size, draft.draft_vocab_size) == (TARGET, DRAFT)
    assert any("t2d's length" in note for note in draft.notes)


def test_a_full_vocabulary_may_carry_a_table_of_zeros(tmp_path: Path) -> None:
    written = writers.eagle3(tmp_path / "draft")
    written.config["draft_vocab_size"] = TARGET
    written.tensors |= {"lm_head.weight": writers.weights(3, TARGET, HIDDEN), "d2t": torch.zeros(TARGET).long()}
    del written.tensors["t2d"]
    draft = open_draft(written.save())
    assert draft.table() is None
    assert any("no table" in note for note in draft.notes)
    written.tensors["d2t"] = torch.arange(TARGET).flip(0) - torch.arange(TARGET)
    table = open_draft(written.save()).table()
    assert table is not None  # readable and wrong: for the verdict
    assert diagnose(table, TARGET, TARGET).mistakes[0].name == "table-in-full-vocabulary"


def test_another_dtype_in_the_config_is_noted(tmp_path: Path) -> None:
    written = writers.specforge(tmp_path / "draft")
    written.config["torch_dtype"] = "float16"
    (note,) = open_draft(written.save()).notes
    assert "config.json says float16" in note and "bfloat16" in note


def test_scale_and_cap_are_found(tmp_path: Path) -> None:
    written = writers.specforge(tmp_path / "draft")
    written.config |= {"logit_scale": 0.25, "final_logit_softcapping": 30.0}
    draft = open_draft(written.save())
    assert (draft.logit_scale, draft.soft_cap) == (0.25, 30.0)


def test_a_dflash2_head_is_scaled_by_its_output_multiplier(tmp_path: Path) -> None:
    written = writers.speculators(tmp_path / "draft", kind="dflash2")
    assert open_draft(written.save()).logit_scale == 1.0
    written.config["output_multiplier"] = 0.7
    assert open_draft(written.save()).logit_scale == 0.7
    written.config["final_logit_softcapping"] = 30.0
    with pytest.raises(CheckpointError, match="has both output_multiplier and final_logit_softcapping"):
        open_draft(written.save())


@pytest.mark.parametrize("value", ["false", "true", 0, 1, [False]])
def test_a_flag_is_true_or_false(value: object, tmp_path: Path) -> None:
    written = writers.automodel(tmp_path / "draft")
    written.config["norm_output"] = value
    with pytest.raises(CheckpointError, match=r"norm_output in config.json is .*, it must be true or false"):
        open_draft(written.save())


def test_only_needed_tensors_are_mapped(tmp_path: Path) -> None:
    written = writers.mtp_deepseek(tmp_path / "draft")
    folder = written.save(shards=6)
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    (folder / index["model.embed_tokens.weight"]).unlink()  # a partial download without what is not needed
    needed = {index[name] for name in index if "shared_head" in name}
    draft = open_draft(folder)
    assert {file.name for file in draft.files} == needed | {"config.json", "model.safetensors.index.json"}


# -- broken folders: each names its fault, and nothing else comes out of them ------------------------------------------

Damage = Callable[[writers.Written], object]


def _index(folder: Path, change: Callable[[dict[str, str]], object]) -> None:
    file = folder / "model.safetensors.index.json"
    document = json.loads(file.read_text())
    change(document["weight_map"])
    file.write_text(json.dumps(document))


def _cut(written: writers.Written, keep: float) -> None:
    file = written.save() / "model.safetensors"
    os.truncate(file, int(file.stat().st_size * keep))


class Payload:
    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (os.environ["ARGMAX_PARITY_TEST_TRAP"],)


def _pickle(written: writers.Written) -> None:
    written.save()
    (written.folder / "model.safetensors").unlink()
    torch.save({"lm_head.weight": Payload()}, written.folder / "pytorch_model.bin")


def _raw_pickle(written: writers.Written) -> None:
    written.save()
    (written.folder / "model.safetensors").unlink()
    (written.folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload()))


def _torch_file(odd: torch.Tensor) -> Damage:
    def damage(written: writers.Written) -> None:
        written.tensors["odd"] = odd
        written.save(suffix=".bin")

    return damage


def _pipe(written: writers.Written) -> None:
    file = written.save() / "config.json"
    file.unlink()
    os.mkfifo(file)


def _config(text: str) -> Damage:
    return lambda written: (written.save() / "config.json").write_text(text)


def _set(**values: object) -> Damage:
    def damage(written: writers.Written) -> None:
        written.config |= values
        written.save()

    return damage


def _tensor(name: str, tensor: torch.Tensor | None) -> Damage:
    def damage(written: writers.Written) -> None:
        if tensor is None:
            del written.tensors[name]
        else:
            written.tensors[name] = tensor
        written.save()

    return damage


def _sharded(change: Callable[[dict[str, str]], object]) -> Damage:
    return lambda written: _index(written.save(shards=2), change)


BROKEN: dict[str, tuple[Damage, str]] = {
    "cut in its data": (lambda w: _cut(w, 0.7), r"model.safetensors is no whole safetensors file .*cut short"),
    "cut in its header": (lambda w: _cut(w, 0.01), r"model.safetensors is no whole safetensors file"),
    "empty file": (lambda w: _cut(w, 0.0), r"model.safetensors is no whole safetensors file"),
    "no weights": (
        lambda w: (w.save() / "model.safetensors").unlink(),
        r"holds no weights; it must hold model.safetens",
    ),
    "no config": (lambda w: (w.save() / "config.json").unlink(), r"there is no config.json in "),
    "config is no JSON": (_config("{vocab_size: 3}"), r"config.json in .* cannot be read as JSON"),
    "config is a list": (_config("[1, 2]"), r"config.json holds \[1, 2\], it must be a JSON object"),
    "config nests without end": (_config("[" * 100_000), r"config.json in .* cannot be read as JSON"),
    "size as text": (
        _set(draft_vocab_size="32k"),
        r"draft_vocab_size in config.json is '32k', it must be a whole number",
    ),
    "size missing": (_set(vocab_size=None), r"vocab_size in config.json of .* is missing"),
    "size negative": (_set(hidden_size=-4), r"hidden_size in config.json is -4, it must be a whole number from 1"),
    "head and config disagree": (
        _set(draft_vocab_size=DRAFT + 1),
        rf"'lm_head.weight' in model.safetensors has {DRAFT} rows and draft_vocab_size in config.json is {DRAFT + 1}",
    ),
    "hidden sizes disagree": (
        _set(hidden_size=HIDDEN * 2),
        rf"'lm_head.weight' in model.safetensors has {HIDDEN} columns and hidden_size in config.json is {HIDDEN * 2}",
    ),
    "draft over target": (
        _set(vocab_size=DRAFT - 1),
        rf"draft_vocab_size in config.json is {DRAFT} and the target vocabulary has {DRAFT - 1}",
    ),
    "scale of zero": (_set(logit_scale=0.0), r"logit_scale in config.json is 0.0, it must be a number above 0"),
    "scale not a number": (_set(logit_scale=float("nan")), r"logit_scale in config.json is nan"),
    "no head": (_tensor("lm_head.weight", None), r"holds no 'lm_head.weight': this draft shares its target's"),
    "no norm": (
        _tensor("norm.weight", None),
        r"holds no 'norm.weight', which is applied before lm_head; it holds 'd2t'",
    ),
    "no table": (_tensor("d2t", None), rf"holds no 'd2t', but 'lm_head.weight' in .* has {DRAFT} rows and the target"),
    "quantised head": (
        _tensor("lm_head.weight", torch.zeros(DRAFT, HIDDEN, dtype=torch.float8_e4m3fn)),
        r"'lm_head.weight' in model.safetensors has dtype F8_E4M3, it must be one of F32, BF16, F16",
    ),
    "head of integers": (
        _tensor("lm_head.weight", torch.zeros(DRAFT, HIDDEN, dtype=torch.int8)),
        r"'lm_head.weight' in model.safetensors has dtype I8",
    ),
    "head of one axis": (
        _tensor("lm_head.weight", torch.zeros(DRAFT)),
        rf"'lm_head.weight' in model.safetensors has shape \({DRAFT},\), it must be \(draft_vocab, hidden\)",
    ),
    "norm of another length": (
        _tensor("norm.weight", torch.ones(HIDDEN + 1)),
        rf"'norm.weight' in model.safetensors has shape \({HIDDEN + 1},\), it must be \({HIDDEN},\)",
    ),
    "unknown layout": (
        lambda w: (w.tensors.clear(), w.tensors.update(something=torch.zeros(2)), w.save()),
        r"has the layout of none of .*vLLM speculators.*: model.safetensors holds 'something'",
    ),
    "index names a missing file": (
        _sharded(lambda m: m.update({"lm_head.weight": "gone.safetensors"})),
        r"gone.safetensors, which model.safetensors.index.json names, is missing in ",
    ),
    "index leaves the folder": (
        _sharded(lambda m: m.update({"lm_head.weight": "../secret.safetensors"})),
        r"the file of 'lm_head.weight' is \"../secret.safetensors\", it must be the plain name of a file",
    ),
    "index names an absolute file": (
        _sharded(lambda m: m.update({"lm_head.weight": "/etc/passwd"})),
        r"the file of 'lm_head.weight' is \"/etc/passwd\", it must be the plain name",
    ),
    "index names the wrong shard": (
        _sharded(lambda m: m.update({"lm_head.weight": m["d2t"]}) or m.update({"d2t": m["norm.weight"]})),
        r"says that '(d2t|lm_head.weight)' is in .*, which holds \d+ tensors and not this",
    ),
    "index of numbers": (
        _sharded(lambda m: m.update({"lm_head.weight": 3})),
        r"the file of 'lm_head.weight' is 3, it must",
    ),
    "two sets of weights": (
        lambda w: (w.save(), w.save(2)),
        r"holds model.safetensors, which model.safetensors.index.json does not name: two sets of weights",
    ),
    "shards without index": (
        lambda w: (w.save(2) / "model.safetensors.index.json").unlink(),
        r"holds model-00001-of-00002.safetensors, model-00002-of-00002.safetensors without an index",
    ),
    "config is a pipe": (_pipe, r"config.json in .* is no regular file"),
    "size of thousands of digits": (
        _config('{"vocab_size": ' + "1" * 5000 + "}"),
        r"config.json in .* cannot be read as JSON",
    ),
    "scale beyond every float": (_set(logit_scale=10**400), r"logit_scale in config.json is 1000+, it must be a numbe"),
    "head of no axis": (
        _tensor("lm_head.weight", torch.zeros(())),
        r"'lm_head.weight' in model.safetensors has shape \(\), it must be \(draft_vocab, hidden\)",
    ),
    "sparse tensor in a torch file": (_torch_file(torch.eye(2).to_sparse()), r"'odd' in pytorch_model.bin is no plain"),
    "tensor without values": (_torch_file(torch.ones(2, device="meta")), r"'odd' in pytorch_model.bin is no plain"),
    "code in a torch file": (_pickle, r"pytorch_model.bin holds more than tensors, .* nothing in it was executed"),
    "code in a plain pickle": (
        _raw_pickle,
        r"pytorch_model.bin holds more than tensors, .* nothing in it was executed",
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_folder_gets_one_sentence(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARGMAX_PARITY_TEST_TRAP", str(tmp_path / "executed"))
    damage, message = BROKEN[fault]
    damage(writers.specforge(tmp_path / "draft"))
    with pytest.raises(CheckpointError, match=message) as found:
        open_draft(tmp_path / "draft")
    assert "\n" not in str(found.value)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("name", ["absent", "file"])
def test_what_is_no_folder(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=f"{name}: it (does not exist|is a file)"):
        open_draft(tmp_path / name)


def test_a_target_of_another_vocabulary(tmp_path: Path) -> None:
    target = writers.language_model(tmp_path / "target")
    target.config["vocab_size"] = TARGET + 64
    with pytest.raises(CheckpointError, match=f"has {TARGET} ids and vocab_size in config.json of .* is {TARGET + 64}"):
        open_draft(writers.specforge(tmp_path / "draft").save(), target.save())


WRONG_TABLES: dict[str, tuple[Callable[[dict[str, torch.Tensor]], None], str]] = {
    "ids for offsets": (lambda t: t.update(d2t=t["d2t"] + torch.arange(DRAFT)), "ids-for-offsets"),
    "offsets for ids": (lambda t: t.update(d2t=t["d2t"] - torch.arange(DRAFT)), "offsets-for-ids"),
    "zeros": (lambda t: t.update(d2t=torch.zeros(DRAFT).long()), "all-zero"),
    "arange": (lambda t: t.update(d2t=torch.arange(DRAFT)), "arange-as-offsets"),
    "int32": (lambda t: t.update(d2t=t["d2t"].int()), "narrow-integers"),
    "float": (lambda t: t.update(d2t=t["d2t"].float()), "not-integers"),
    "longer than the head": (lambda t: t.update(d2t=torch.cat([t["d2t"], t["d2t"][-1:]])), "stale-table"),
    "of another training": (lambda t: t.update(d2t=writers.table(writers.sorted_ids(7))["d2t"]), "stale-table"),
}


@pytest.mark.parametrize("fault", WRONG_TABLES)
def test_a_readable_wrong_table_is_left_to_its_verdict(fault: str, tmp_path: Path) -> None:
    written = writers.specforge(tmp_path / "draft")
    damage, name = WRONG_TABLES[fault]
    damage(written.tensors)
    draft = open_draft(written.save())
    table = draft.table()
    assert table is not None
    diagnosis = diagnose(table, DRAFT, TARGET, draft.mask())
    assert not diagnosis.is_sound
    assert diagnosis.mistakes[0].name == name


def test_the_memory_benchmark_writes_what_it_says(tmp_path: Path) -> None:
    assert write_checkpoint(tmp_path / "big", 5000, 8) == 5000 * 8 * 2
    draft = open_draft(tmp_path / "big")
    assert (draft.layout, draft.vocab_size, draft.hidden_size) == ("a whole language model", 5000, 8)
    assert draft.lm_head.values().std() == pytest.approx(8**-0.5, rel=0.05)


def test_writers_order_as_the_trainers_do() -> None:
    assert (np.diff(writers.sorted_ids()) > 0).all()
    by_frequency, special_first = writers.most_common_ids(), writers.special_first_ids()
    assert set(by_frequency) == set(writers.sorted_ids())
    assert not (np.diff(by_frequency) > 0).all()
    assert special_first[:3].tolist() == [TARGET - 2, TARGET - 1, 3]
    assert (np.diff(special_first[-5:]) > 0).all()
    assert len(np.unique(targets(writers.table(special_first)["d2t"].numpy()))) == DRAFT
