"""What is sent of gradients: all of them, fewer bits, or a product of low rank."""

from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from drumline.config import DDPConfig

# DDP looks at a hook's annotations, so this module must not turn them into strings.


class Packing:
    """Sends gradients as they are."""

    def pack(self, gradients: Tensor) -> Tensor:
        """What is summed over ranks."""
        return gradients

    def unpack(self, packed: Tensor, dtype: torch.dtype) -> Tensor:
        """The sum, in the gradients' dtype."""
        del dtype
        return packed


class Narrow(Packing):
    """Sends gradients in a narrower dtype, divided before and multiplied after.

    Args:
        dtype: What is sent.
        divisor: The number of ranks for float16, whose sum could overflow; else 1.
    """

    def __init__(self, dtype: torch.dtype, divisor: int = 1) -> None:
        self.dtype, self.divisor = dtype, divisor

    def pack(self, gradients: Tensor) -> Tensor:
        """A narrow copy."""
        return (gradients / self.divisor).to(self.dtype)

    def unpack(self, packed: Tensor, dtype: torch.dtype) -> Tensor:
        """Widen the sum."""
        return packed.to(dtype).mul_(self.divisor)


def packing_for(compression: str, size: int) -> Packing:
    """How gradients are sent. PowerSGD works on DDP's buckets; apart from them all is sent."""
    if compression == "bf16":
        return Narrow(torch.bfloat16)
    return Narrow(torch.float16, size) if compression == "fp16" else Packing()


def low_rank_state(config: DDPConfig, size: int) -> tuple[PowerSGDState, int]:
    """The state of `sum_low_rank` for so many ranks."""
    # Two plain steps come first: error feedback and warm start cannot begin earlier.
    return PowerSGDState(None, config.powersgd_rank, start_powerSGD_iter=2), size


def sum_low_rank(state: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """PowerSGD (Vogels et al. 2019, arXiv 1905.13727), its mean made a sum."""
    powersgd, size = state
    averaged = powerSGD_hook(powersgd, bucket)
    if not bucket.buffer().is_cuda:
        # It starts collectives from callbacks, which gloo runs on threads of its own: without this
        # their order among other collectives would differ between ranks.
        averaged.wait()
    return averaged.then(lambda done: done.value().mul_(size))
