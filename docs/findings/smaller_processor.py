"""InklingMTP's sizes: the lm_head has the padded vocabulary, the processor cuts to the real one."""

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
    lm_head.weight.data[0] = -1.0  # the one real id; the padded one has zeros
    lm_head.quant_method.process_weights_after_loading(lm_head)
    processor = LogitsProcessor(2, org_vocab_size=1)
    hidden_states = torch.ones(1, 1)
    print("full gather:    ", processor(lm_head, hidden_states).argmax(dim=-1).tolist())
    print("get_top_tokens: ", processor.get_top_tokens(lm_head, hidden_states).tolist())
