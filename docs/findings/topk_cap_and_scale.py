"""Two logits under a soft cap of 30 and a scale of 4, as a DFlash2 configuration may set both."""

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
    lm_head = ParallelLMHead(2, 1)
    lm_head.weight.data.zero_()
    lm_head.weight.data[:2, 0] = torch.tensor([8.0, 10.0])
    lm_head.quant_method.process_weights_after_loading(lm_head)
    processor = LogitsProcessor(2, scale=4.0, soft_cap=30.0)
    hidden_states = torch.ones(1, 1)
    print("full logits:             ", processor(lm_head, hidden_states)[0].tolist())
    ids, values = processor.get_top_k_tokens(lm_head, hidden_states, 2)
    print("get_top_k_tokens:        ", dict(zip(ids[0].tolist(), values[0].tolist(), strict=True)))
    ids, values = processor.get_top_k_tokens(lm_head, hidden_states, 2, return_log_probs=True)
    print("with return_log_probs:   ", dict(zip(ids[0].tolist(), values[0].tolist(), strict=True)))
    print("full logits, log softmax:", processor(lm_head, hidden_states).log_softmax(dim=-1)[0].tolist())
