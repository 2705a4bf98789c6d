"""Small checkpoints as trainers write them, for tests: one writer a layout, and the ways they order a draft
vocabulary."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from refimpl.vocab.d2t import offsets

HIDDEN, DRAFT, TARGET = 16, 48, 160


def corpus(seed: int) -> np.ndarray:
    """Token ids of a made-up text: frequent ones low, as in a byte-pair vocabulary."""
    rng = np.random.default_rng(seed)
    shares = 1 / np.arange(1, TARGET + 1)
    return rng.permutation(rng.choice(TARGET, 4000, p=shares / shares.sum()))


def sorted_ids(seed: int = 0) -> np.ndarray:
    """EAGLE, SpecForge and speculators: the most frequent ids, sorted."""
    return np.sort([token for token, _ in Counter(corpus(seed).tolist()).most_common(DRAFT)])


def most_common_ids(seed: int = 0) -> np.ndarray:
    """Model-Optimizer's calibrate_frequent_vocab: by falling frequency."""
    return np.array([token for token, _ in Counter(corpus(seed).tolist()).most_common(DRAFT)])


def special_first_ids(seed: int = 0) -> np.ndarray:
    """Automodel's build_eagle3_token_mapping: special ids, by falling frequency, ascending ones to fill up."""
    counts = Counter(corpus(seed).tolist())
    special = [TARGET - 2, TARGET - 1, 3]
    frequent = [token for token, _ in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))][: DRAFT - 8]
    ids = list(dict.fromkeys([*special, *frequent]))
    ids += [token for token in range(TARGET) if token not in ids]
    return np.array(ids[:DRAFT])


@dataclass
class Written:
    """A checkpoint about to be written: change ``config`` and ``tensors``, then `save`."""

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, torch.Tensor]

    def save(self, shards: int = 1, suffix: str = ".safetensors") -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "config.json").write_text(json.dumps(self.config, indent=1))
        if suffix == ".bin":
            torch.save(self.tensors, self.folder / "pytorch_model.bin")
            return self.folder
        if shards == 1:
            save_file(self.tensors, self.folder / "model.safetensors", metadata={"format": "pt"})
            return self.folder
        names = sorted(self.tensors)
        weight_map = {}
        for shard in range(shards):
            file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
            mine = {name: self.tensors[name] for name in names[shard::shards]}
            save_file(mine, self.folder / file, metadata={"format": "pt"})
            weight_map |= dict.fromkeys(mine, file)
        index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
        (self.folder / "model.safetensors.index.json").write_text(json.dumps(index))
        return self.folder


def weights(seed: int, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def gain(seed: int) -> torch.Tensor:
    return (weights(seed, HIDDEN).float().exp() * 0.7).to(torch.bfloat16)


def table(ids: np.ndarray) -> dict[str, torch.Tensor]:
    mask = torch.zeros(TARGET, dtype=torch.bool)
    mask[torch.from_numpy(ids)] = True
    return {"d2t": torch.from_numpy(offsets(ids)), "t2d": mask}


def _sizes(**more: Any) -> dict[str, Any]:
    return {"model_type": "llama", "vocab_size": TARGET, "hidden_size": HIDDEN, "rms_norm_eps": 1e-5, **more}


def _trunk(prefix: str) -> dict[str, torch.Tensor]:
    """A few tensors of the decoder layer; readers must find their way among them and leave them alone."""
    return {
        f"{prefix}self_attn.q_proj.weight": weights(11, HIDDEN, 2 * HIDDEN),
        f"{prefix}input_layernorm.weight": gain(12),
    }


def eagle1(folder: Path) -> Written:
    config = _sizes(architectures=["LlamaForCausalLM"], torch_dtype="float16")
    return Written(folder, config, {**_trunk("layers.0."), "fc.weight": weights(1, HIDDEN, 2 * HIDDEN)})


def eagle3(folder: Path, ids: np.ndarray | None = None, architecture: str = "LlamaForCausalLM") -> Written:
    config = _sizes(architectures=[architecture], draft_vocab_size=DRAFT, torch_dtype="bfloat16")
    tensors = {
        **_trunk("midlayer."),
        "fc.weight": weights(1, HIDDEN, 3 * HIDDEN),
        "norm.weight": gain(2),
        "lm_head.weight": weights(3, DRAFT, HIDDEN),
        **table(sorted_ids() if ids is None else ids),
    }
    return Written(folder, config, tensors)


def specforge(folder: Path, ids: np.ndarray | None = None) -> Written:
    return eagle3(folder, ids, "LlamaForCausalLMEagle3")


def model_optimizer(folder: Path, ids: np.ndarray | None = None) -> Written:
    config = _sizes(
        architectures=["LlamaForCausalLMEagle3"],
        draft_vocab_size=DRAFT,
        eagle_config={"use_last_layernorm": True, "use_aux_hidden_state": True},
    )
    tensors = {
        **_trunk("layers.0."),
        "fc.weight": weights(1, HIDDEN, 3 * HIDDEN),
        "norm.weight": gain(2),
        "lm_head.weight": weights(3, DRAFT, HIDDEN),
        "d2t": table(most_common_ids() if ids is None else ids)["d2t"],
    }
    return Written(folder, config, tensors)


def automodel(folder: Path, ids: np.ndarray | None = None) -> Written:
    config = _sizes(architectures=["LlamaEagle3DraftModel"], draft_vocab_size=DRAFT, target_hidden_size=HIDDEN)
    tensors = {
        **_trunk("model.layers.0."),
        "model.fc.weight": weights(1, HIDDEN, 3 * HIDDEN),
        "model.norm.weight": gain(2),
        "model.embed_tokens.weight": weights(4, TARGET, HIDDEN),
        "lm_head.weight": weights(3, DRAFT, HIDDEN),
        **table(special_first_ids() if ids is None else ids),
    }
    return Written(folder, config, tensors)


def speculators(folder: Path, ids: np.ndarray | None = None, kind: str = "eagle3") -> Written:
    config = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": kind,
        "draft_vocab_size": DRAFT,
        "transformer_layer_config": _sizes(),
        "speculators_config": {"algorithm": kind, "verifier": {"name_or_path": "some/model"}},
    }
    tensors = {
        **_trunk("layers.0."),
        "fc.weight": weights(1, HIDDEN, 3 * HIDDEN),
        "norm.weight": gain(2),
        "embed_tokens.weight": weights(4, TARGET, HIDDEN),
        "lm_head.weight": weights(3, DRAFT, HIDDEN),
        **table(sorted_ids() if ids is None else ids),
    }
    return Written(folder, config, tensors)


def mtp_deepseek(folder: Path, layers: int = 2) -> Written:
    config = _sizes(architectures=["DeepseekV3ForCausalLM"], num_hidden_layers=3, num_nextn_predict_layers=layers)
    tensors = {"model.embed_tokens.weight": weights(4, TARGET, HIDDEN), "lm_head.weight": weights(5, TARGET, HIDDEN)}
    for layer in range(3, 3 + layers):
        tensors |= _trunk(f"model.layers.{layer}.")
        tensors[f"model.layers.{layer}.shared_head.norm.weight"] = gain(20 + layer)
        tensors[f"model.layers.{layer}.shared_head.head.weight"] = weights(30 + layer, TARGET, HIDDEN)
    return Written(folder, config, tensors)


def mtp_qwen(folder: Path) -> Written:
    config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "text_config": _sizes(mtp_num_hidden_layers=1, tie_word_embeddings=True),
    }
    tensors = {
        **_trunk("mtp.layers.0."),
        "mtp.fc.weight": weights(1, HIDDEN, 2 * HIDDEN),
        "mtp.norm.weight": gain(2) - 1,
        "model.language_model.embed_tokens.weight": weights(4, TARGET, HIDDEN),
    }
    return Written(folder, config, tensors)


def language_model(folder: Path, tied: bool = True) -> Written:
    config = _sizes(architectures=["Qwen3ForCausalLM"], tie_word_embeddings=tied)
    tensors = {"model.embed_tokens.weight": weights(4, TARGET, HIDDEN), "model.norm.weight": gain(2)}
    if not tied:
        tensors["lm_head.weight"] = weights(5, TARGET, HIDDEN)
    return Written(folder, config, {**tensors, **_trunk("model.layers.0.")})


def dflash(folder: Path) -> Written:
    config = _sizes(architectures=["DFlashDraftModel"], block_size=16, dflash_config={"mask_token_id": TARGET - 1})
    return Written(folder, config, {**_trunk("layers.0."), "norm.weight": gain(2)})


WITH_TABLE = {
    "EAGLE": eagle3,
    "SpecForge": specforge,
    "vLLM speculators (eagle3)": speculators,
    "NVIDIA Model-Optimizer": model_optimizer,
    "NeMo Automodel": automodel,
}
FULL_VOCABULARY = {
    "native MTP (DeepSeek)": mtp_deepseek,
    "native MTP (Qwen)": mtp_qwen,
    "a whole language model": language_model,
}
WITH_TARGET = {"EAGLE (1 or 2)": eagle1, "DFlash": dflash}
