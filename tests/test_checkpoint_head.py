"""A checkpoint's head gives the logits that its tensors say, in every layout of its rows over ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fixtures.checkpoints import head as checkpoint_heads
from fixtures.checkpoints.head import CheckpointHead, load_named
from fixtures.checkpoints.names import name_of, places_in
from refimpl.heads import HeadError
from refimpl.vocab.layouts import layout_from_sizes
from tests import checkpoint_writers as writers
from tests.checkpoint_writers import DRAFT, HIDDEN, TARGET

ALL: dict[str, Callable[[Path], writers.Written]] = {
    **writers.WITH_TABLE,
    **writers.FULL_VOCABULARY,
    **writers.WITH_TARGET,
}


def load(layout: str, tmp_path: Path) -> tuple[CheckpointHead, writers.Written, writers.Written | None]:
    written = ALL[layout](tmp_path / "draft")
    target = writers.language_model(tmp_path / "target", tied=False) if layout in writers.WITH_TARGET else None
    name = name_of(written.save(), target.save() if target else None)
    return load_named(name), written, target


def by_hand(
    hidden: torch.Tensor, weight: torch.Tensor, gain: torch.Tensor | None, eps: float, offset: float
) -> torch.Tensor:
    if gain is not None:
        wide = hidden.double()
        wide = wide / (wide.square().mean(dim=1, keepdim=True) + eps).sqrt() * (gain.double() + offset)
        hidden = wide.to(torch.bfloat16)
    return hidden.double() @ weight.double().T


@pytest.mark.parametrize("layout", ALL)
def test_logits_are_those_of_the_tensors(layout: str, tmp_path: Path) -> None:
    head, written, target = load(layout, tmp_path)
    hidden = writers.weights(77, 6, HIDDEN)
    shards = layout_from_sizes([head.num_logits // 3, 0, head.num_logits - head.num_logits // 3], extra_padding=2)
    for step in range(head.steps):
        parts = []
        for rank in range(3):
            shard = shards.shard(rank)
            local = head.local_logits(hidden.clone(), shard, step)
            assert local.shape == (6, shard.padded_size)
            parts.append(local[:, : shard.num_real])
        found = torch.cat(parts, dim=1)
        projection = head.draft.steps[step]
        weight = (target or written).tensors.get(projection.lm_head.name)
        assert weight is not None
        gain = None if projection.norm is None else written.tensors[projection.norm.name]
        expected = by_hand(hidden, weight, gain, 1e-5, head.draft.norm_offset)
        assert found.dtype == torch.bfloat16
        assert torch.allclose(found.double(), expected, rtol=2**-6, atol=2**-6)
        assert torch.equal(
            found,
            torch.cat(
                [head.local_logits(hidden, shards.shard(r), step)[:, : shards.shard(r).num_real] for r in range(3)],
                dim=1,
            ),
        )


def test_steps_differ(tmp_path: Path) -> None:
    head, _, _ = load("native MTP (DeepSeek)", tmp_path)
    hidden, shard = writers.weights(77, 6, HIDDEN), layout_from_sizes([TARGET]).shard(0)
    first, second, third = (head.local_logits(hidden, shard, step) for step in range(3))
    assert not torch.equal(first, second)
    assert torch.equal(first, third)  # there are two, and they take turns


def test_blocks_of_rows_are_no_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head, _, _ = load("EAGLE", tmp_path)
    hidden, shard = writers.weights(77, 6, HIDDEN), layout_from_sizes([DRAFT]).shard(0)
    whole = head.local_logits(hidden, shard)
    monkeypatch.setattr(checkpoint_heads, "_BLOCK_BYTES", 4 * HIDDEN * 5)
    assert torch.allclose(head.local_logits(hidden, shard).float(), whole.float(), rtol=2**-7)


def test_weights_are_views_of_the_file(tmp_path: Path) -> None:
    head, written, _ = load("EAGLE", tmp_path)
    rows = head.weight_rows(3, 9)
    assert torch.equal(rows, written.tensors["lm_head.weight"][3:9])
    assert rows.data_ptr() == head.weight_rows(0, DRAFT)[3:].data_ptr()
    assert head.weight_rows(4, 4).shape == (0, HIDDEN)


def test_bias_scale_and_cap_are_applied(tmp_path: Path) -> None:
    written = writers.specforge(tmp_path / "draft")
    written.config |= {"logit_scale": 0.75, "final_logit_softcapping": 2.0}
    written.tensors["lm_head.bias"] = writers.weights(9, DRAFT)
    head = load_named(name_of(written.save()))
    hidden, shard = writers.weights(77, 6, HIDDEN), layout_from_sizes([DRAFT]).shard(0)
    plain = by_hand(hidden, written.tensors["lm_head.weight"], written.tensors["norm.weight"], 1e-5, 0.0)
    expected = torch.tanh((plain + written.tensors["lm_head.bias"].double()) / 2.0) * 2.0 * 0.75
    assert torch.allclose(head.local_logits(hidden, shard).double(), expected, atol=2**-5)


def test_a_sound_table_is_given_and_a_wrong_one_is_not(tmp_path: Path) -> None:
    head, written, _ = load("NVIDIA Model-Optimizer", tmp_path)
    table = head.d2t()
    assert table is not None and table.tolist() == written.tensors["d2t"].tolist()
    written.tensors["d2t"] = written.tensors["d2t"] + torch.arange(DRAFT)
    assert load_named(name_of(written.save())).d2t() is None


def test_names_hold_both_folders(tmp_path: Path) -> None:
    assert places_in(name_of(tmp_path)) == (tmp_path, None)
    assert places_in(name_of(tmp_path / "a b", tmp_path / "target: c")) == (tmp_path / "a b", tmp_path / "target: c")
    with pytest.raises(HeadError, match="does not exist"):
        load_named(name_of(tmp_path / "absent"))


def test_a_head_is_never_cut_to_fit(tmp_path: Path) -> None:
    head, _, _ = load("EAGLE", tmp_path)
    assert head.within(1) is head
    assert head.changed(norm=False).local_logits(writers.weights(1, 2, HIDDEN), head.layout(2).shard(1)).shape[0] == 2
    assert head.figures()["layout"] == "EAGLE"
