"""Hidden states of three dimensions: torchrun --nproc-per-node 2 three_dimensional.py"""

import os
import sys

if "TORCHELASTIC_RUN_ID" not in os.environ:
    sys.exit(__doc__)
run_id = os.environ["TORCHELASTIC_RUN_ID"] + os.environ["MASTER_PORT"]
os.environ.update(VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1", VLLM_DIST_IDENT=f"finding-{run_id}")

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
with set_current_vllm_config(VllmConfig()):
    init_distributed_environment(size, rank, "env://", rank, "gloo")
    initialize_model_parallel(size)
    lm_head = ParallelLMHead(2, 1)
    lm_head.weight.data.zero_()
    lm_head.quant_method.process_weights_after_loading(lm_head)
    processor = LogitsProcessor(2)
    for shape in ((1, 1, 1), (1, 2, 1)):
        hidden_states = torch.zeros(shape)
        full = processor(lm_head, hidden_states).argmax(dim=-1)
        try:
            local = processor.get_top_tokens(lm_head, hidden_states)
        except RuntimeError as error:
            local = error
        if rank == 0:
            print(f"{shape}: full gather {full.tolist()}, get_top_tokens", getattr(local, "tolist", lambda: local)())
