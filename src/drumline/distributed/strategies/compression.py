"""How gradients are summed over ranks: each parameter on its own, packed if asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from drumline.config import DDPConfig
from drumline.distributed.strategies.pieces import local

# DDP looks at a hook's annotations, so this module must not turn them into strings.


class Packing:
    """Sends gradients as they are."""

    def pack(self, gradient: Tensor) -> Tensor:
        """What is summed over ranks."""
        return gradient

    def unpack(self, packed: Tensor, gradient: Tensor) -> None:
        """Put the sum into the gradient."""


class Narrow(Packing):
    """Sends gradients in a narrower dtype, divided before and multiplied after.

    Args:
        dtype: What is sent.
        divisor: The number of ranks for float16, whose sum could overflow; else 1.
    """

    def __init__(self, dtype: torch.dtype, divisor: int = 1) -> None:
        self.dtype, self.divisor = dtype, divisor

    def pack(self, gradient: Tensor) -> Tensor:
        """A narrow copy."""
        return (gradient / self.divisor).to(self.dtype)

    def unpack(self, packed: Tensor, gradient: Tensor) -> None:
        """Widen the sum."""
        gradient.copy_(packed).mul_(self.divisor)


def packing_for(compression: str, size: int) -> Packing:
    """How single gradients are sent. PowerSGD works on buckets; alone they go as they are."""
    if compression == "bf16":
        return Narrow(torch.bfloat16)
    return Narrow(torch.float16, size) if compression == "fp16" else Packing()


@dataclass
class Channel:
    """The process group in which single gradients are summed; None is that of all collectives."""

    group: dist.ProcessGroup | None = None


def sum_gradients(
    parameters: Sequence[nn.Parameter],
    device: torch.device,
    *,
    group: dist.ProcessGroup | None = None,
    packing: Packing | None = None,
) -> None:
    """Sum gradients over the ranks of a group, after backwards that sent nothing.

    One that only some ranks have counts as zero on the others; one that none has stays None.

    Args:
        parameters: The same on all ranks of the group.
        device: Of the data plane.
        group: All ranks by default.
        packing: How gradients are sent; by default as they are.
    """
    packing = packing or Packing()
    used = torch.tensor([int(p.grad is not None) for p in parameters], device=device)
    dist.all_reduce(used, dist.ReduceOp.MAX, group=group)
    sent = []
    for parameter, is_used in zip(parameters, used.tolist(), strict=True):
        if is_used:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradient = local(parameter.grad)
            packed = packing.pack(gradient)
            sent.append((gradient, packed, dist.all_reduce(packed, group=group, async_op=True)))
    for gradient, packed, work in sent:
        work.wait()
        packing.unpack(packed, gradient)


def communication_hook(config: DDPConfig, size: int, channel: Channel) -> tuple[Any, Any]:
    """State and hook for DDP. All hooks give sums, not means."""
    if config.compression == "powersgd":
        # Two plain steps come first: error feedback and warm start cannot begin earlier.
        state = PowerSGDState(None, config.powersgd_rank, start_powerSGD_iter=2)
        return (state, size), _sum_low_rank
    return (packing_for(config.compression, size), channel), _sum_each


def _sum_each(state: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Sum each parameter's gradient on its own; no division."""
    packing, channel = state
    gradients = bucket.gradients()
    packed = [packing.pack(gradient) for gradient in gradients]
    works = [dist.all_reduce(tensor, group=channel.group, async_op=True) for tensor in packed]
    futures = [work.get_future() for work in works]

    def unpack(_: Any) -> Tensor:
        for tensor, gradient in zip(packed, gradients, strict=True):
            packing.unpack(tensor, gradient)
        return bucket.buffer()

    if bucket.buffer().is_cuda:  # one stream: the last to be queued is the last to be done
        return futures[-1].then(unpack)  # type: ignore[no-any-return]
    return torch.futures.collect_all(futures).then(unpack)


def _sum_low_rank(state: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """PowerSGD (Vogels et al. 2019, arXiv 1905.13727), its mean made a sum."""
    powersgd, size = state
    averaged = powerSGD_hook(powersgd, bucket)
    if not bucket.buffer().is_cuda:
        # It starts collectives from callbacks, which gloo runs on threads of its own: without this
        # their order among other collectives would differ between ranks.
        averaged.wait()
    return averaged.then(lambda done: done.value().mul_(size))
