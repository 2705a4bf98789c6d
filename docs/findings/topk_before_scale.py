"""Two bfloat16 logits one step apart that a scale makes equal: selection and values before it, and after."""

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
    lm_head = ParallelLMHead(2, 1, params_dtype=torch.bfloat16)
    lm_head.weight.data.zero_()
    lm_head.weight.data[:2, 0] = torch.tensor([1.5078125, 1.515625])
    lm_head.quant_method.process_weights_after_loading(lm_head)
    processor = LogitsProcessor(2, scale=1 / 3)
    hidden_states = torch.ones(1, 1, dtype=torch.bfloat16)
    print("full logits:             ", processor(lm_head, hidden_states)[0].tolist())
    ids, values = processor.get_top_k_tokens(lm_head, hidden_states, 1)
    print("full gather and argmax:  ", processor(lm_head, hidden_states).argmax(dim=-1).tolist())
    print("get_top_k_tokens:        ", ids[0].tolist(), values[0].tolist())
