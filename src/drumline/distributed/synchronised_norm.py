"""Batch normalisation over the samples of all ranks, on any device and in any precision.

Torch's SyncBatchNorm works on GPUs only and has no way to leave out a rank that merely keeps step.
Mean and variance are taken in two passes, so that they are as exact as those of one process.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm


class SynchronisedBatchNorm(_BatchNorm):
    """A BatchNorm whose statistics are those of all ranks' micro-batches together.

    Attributes:
        idle: While set, this rank's samples do not count; it still takes part.
    """

    idle = False

    def forward(self, input: Tensor) -> Tensor:
        """Normalise [samples, channels, ...]; every rank must call it."""
        if not (self.training or self.running_mean is None):
            return super().forward(input)
        wide = input if input.dtype == torch.float64 else input.float()
        dims = [0, *range(2, wide.dim())]
        shape = [1, -1, *([1] * (wide.dim() - 2))]
        weight = 0.0 if self.idle else 1.0
        count = wide.new_full((1,), weight * (wide.numel() // wide.shape[1]))
        total = _sum_over_ranks(torch.cat([wide.sum(dims) * weight, count]))
        samples = total[-1].detach()
        mean = total[:-1] / samples
        centred = wide - mean.view(shape)
        variance = _sum_over_ranks(centred.square().sum(dims) * weight) / samples
        self._follow(mean.detach(), variance.detach(), samples)
        result = centred * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            result = result * self.weight.view(shape) + self.bias.view(shape)
        return result.to(input.dtype)

    @torch.no_grad()
    def _follow(self, mean: Tensor, variance: Tensor, samples: Tensor) -> None:
        """Move the running statistics, as torch does: with the unbiased variance."""
        if self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        rate = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * (samples / (samples - 1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), rate)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), rate)

    def _check_input_dim(self, input: Tensor) -> None:
        del input  # any number of dims will do


def synchronise_norms(model: nn.Module) -> bool:
    """Replace every BatchNorm inside a model, keeping its parameters; whether there is one."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, _BatchNorm) and not isinstance(child, SynchronisedBatchNorm):
                setattr(module, name, _synchronised(child))
    return any(isinstance(module, SynchronisedBatchNorm) for module in model.modules())


def _synchronised(norm: _BatchNorm) -> SynchronisedBatchNorm:
    made = SynchronisedBatchNorm(
        norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats
    )
    made._parameters, made._buffers, made.training = norm._parameters, norm._buffers, norm.training
    return made


def _sum_over_ranks(tensor: Tensor) -> Tensor:
    summed: Tensor = _Sum.apply(tensor)  # type: ignore[no-untyped-call]
    return summed


class _Sum(torch.autograd.Function):
    """A sum over ranks; its gradient is the sum of the ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        del ctx
        summed = tensor.clone()
        dist.all_reduce(summed)
        return summed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        del ctx
        summed = grad.clone()
        dist.all_reduce(summed)
        return summed
