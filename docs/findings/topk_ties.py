"""Nine equal logits: the six that get_top_k_tokens names, and those of the lowest ids."""

import os
import tempfile

os.environ.update(VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1", VLLM_DIST_IDENT=f"finding-{os.getpid()}")

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

with tempfile.TemporaryDirectory() as folder, set_current_vllm_config(VllmConfig()):
    init_distributed_environment(1, 0, f"file://{folder}/store", 0, "gloo")
    initialize_model_parallel(1)
    lm_head = ParallelLMHead(9, 1)
    lm_head.weight.data.zero_()
    lm_head.weight.data[:9, 0] = 0.0
    lm_head.quant_method.process_weights_after_loading(lm_head)
    processor = LogitsProcessor(9)
    hidden_states = torch.ones(1, 1)
    full = processor(lm_head, hidden_states)
    print(
        "full logits, ties by the lowest id:", full.sort(dim=-1, descending=True, stable=True).indices[0, :6].tolist()
    )
    print("get_top_k_tokens:                  ", processor.get_top_k_tokens(lm_head, hidden_states, 6)[0][0].tolist())
