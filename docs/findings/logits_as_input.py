"""A processor that takes logits: its fast path multiplies them by the lm_head once more."""

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
    lm_head = ParallelLMHead(2, 2)
    lm_head.weight.data.zero_()
    lm_head.weight.data[:2] = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    lm_head.quant_method.process_weights_after_loading(lm_head)
    processor = LogitsProcessor(2, logits_as_input=True)
    hidden_states = torch.tensor([[1.0, 2.0]])
    print("full gather:    ", processor(lm_head, hidden_states).argmax(dim=-1).tolist())
    print("get_top_tokens: ", processor.get_top_tokens(lm_head, hidden_states).tolist())
