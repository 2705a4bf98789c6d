"""Two draft ids tie and their table does not rise: 0 by the full gather, 1 by the fast path. So for two NaNs."""

import os
import tempfile

os.environ.update(VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1", VLLM_DIST_IDENT=f"finding-{os.getpid()}")

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.interfaces import LocalArgmaxMixin


class Draft(LocalArgmaxMixin):
    """As Eagle3LlamaForCausalLM: the mixin's fast path, and compute_logits with its scatter."""

    def __init__(self, lm_head, processor, targets, vocab_size):
        self.lm_head, self.logits_processor, self.vocab_size = lm_head, processor, vocab_size
        self.draft_id_to_target_id = torch.tensor(targets) - torch.arange(len(targets))

    def compute_logits(self, hidden_states):
        logits = self.logits_processor(self.lm_head, hidden_states)
        targets = torch.arange(len(self.draft_id_to_target_id)) + self.draft_id_to_target_id
        scattered = logits.new_full((logits.shape[0], self.vocab_size), float("-inf"))
        scattered[:, targets] = logits
        return scattered


with tempfile.TemporaryDirectory() as folder, set_current_vllm_config(VllmConfig()):
    init_distributed_environment(1, 0, f"file://{folder}/store", 0, "gloo")
    initialize_model_parallel(1)
    lm_head = ParallelLMHead(2, 1)
    lm_head.weight.data.zero_()
    # Both logits are 0 for the first row, NaN for the second.
    lm_head.quant_method.process_weights_after_loading(lm_head)
    processor = LogitsProcessor(2)
    hidden_states = torch.tensor([[0.0], [float("nan")]])
    draft = Draft(lm_head, processor, targets=[1, 0], vocab_size=2)
    print("compute_logits: ", draft.compute_logits(hidden_states).argmax(dim=-1).tolist())
    print("get_top_tokens: ", draft.get_top_tokens(hidden_states).tolist())
