"""Which backend and device the ranks use, and the settings each needs on one machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Backend:
    """``name`` is nccl or gloo; ``shared_gpu`` says that several ranks have to share a GPU."""

    name: str
    shared_gpu: bool = False

    @property
    def device_type(self) -> str:
        return "cuda" if self.name == "nccl" else "cpu"

    def environment(self, rank: int, one_host: bool) -> dict[str, str]:
        """Variables an executor needs before torch.distributed reads them."""
        settings = {}
        if one_host:
            settings["GLOO_SOCKET_IFNAME"] = "lo"
        if self.name == "nccl":
            # Errors end the case by the suite's own limits, not by a process abort of the watchdog.
            settings |= {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}
            if one_host:
                settings["NCCL_SOCKET_IFNAME"] = "lo"
            if self.shared_gpu:
                # Up to NCCL 2.29 two ranks of one host hash on one GPU are refused, so every rank claims a host of
                # its own and NCCL takes its socket transport. From 2.30 the variable below does it openly.
                settings |= {
                    "NCCL_HOSTID": f"argmax-parity-{rank}",
                    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
                    "NCCL_NVLS_ENABLE": "0",
                    "NCCL_MAX_CTAS": "4",
                }
        return settings


def choose(wanted: str, cuda_devices: list[int], num_ranks: int) -> Backend:
    """Choose by what every host offers. Raises ValueError with one sentence.

    ``cuda_devices``: GPUs of each host. ``num_ranks``: the largest number of ranks one host will hold.
    """
    has_cuda = bool(cuda_devices) and all(count > 0 for count in cuda_devices)
    if wanted == "nccl" and not has_cuda:
        raise ValueError("--backend=nccl needs a GPU on every host and torch sees none; use --backend=gloo or auto")
    if wanted == "gloo" or not has_cuda:
        return Backend("gloo")
    return Backend("nccl", shared_gpu=num_ranks > min(cuda_devices))
