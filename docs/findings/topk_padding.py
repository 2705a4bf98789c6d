"""Ids padded to 64: two whose logits are -inf, and one, each asked for its top 2."""

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
    for vocab_size, logit in ((2, float("-inf")), (1, 0.0)):
        lm_head = ParallelLMHead(vocab_size, 1)
        lm_head.weight.data.zero_()
        lm_head.weight.data[:vocab_size] = logit
        lm_head.quant_method.process_weights_after_loading(lm_head)
        ids, values = LogitsProcessor(vocab_size).get_top_k_tokens(lm_head, torch.ones(1, 1), 2)
        print(f"ids 0 to {vocab_size - 1}, logits {logit}: get_top_k_tokens", ids[0].tolist(), values[0].tolist())
