"""Weights of two-dimensional convolutions in channels-last layout, which tensor cores read."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from drumline.training.performance.snapshot import local_optimizer
from drumline.training.performance.switch import Subject, Switch


class ChannelsLast(Switch):
    """The layout of all four-dimensional weights and of their moments; activations follow them."""

    name = "channels_last"

    def __init__(self) -> None:
        self._strides: list[tuple[nn.Parameter, tuple[int, ...]]] = []

    def why_not(self, subject: Subject) -> str | None:
        """Two-dimensional convolutions, whole weights, and a wrapper that can follow."""
        convolutions = (nn.Conv2d, nn.ConvTranspose2d)
        if not any(isinstance(module, convolutions) for module in subject.model.modules()):
            return "the model has no two-dimensional convolution"
        if subject.fixed_layout:
            return subject.fixed_layout
        if any(isinstance(parameter, DTensor) for parameter in subject.model.parameters()):
            return "the weights are in pieces"
        return None if _to_change(subject.model) else "it is on already"

    @torch.no_grad()
    def apply(self, subject: Subject) -> None:
        """Change the layout; every value stays."""
        for parameter in _to_change(subject.model):
            self._strides.append((parameter, parameter.stride()))
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
            _moments_follow(subject.optimizer, parameter)
        subject.rewrap()

    @torch.no_grad()
    def undo(self, subject: Subject) -> None:
        """The layout that each weight had."""
        for parameter, strides in self._strides:
            parameter.data = _with_strides(parameter.data, strides)
            parameter.grad = None
            _moments_follow(subject.optimizer, parameter)
        changed, self._strides = bool(self._strides), []
        if changed:
            subject.rewrap()


def _to_change(model: nn.Module) -> list[nn.Parameter]:
    return [
        parameter
        for parameter in model.parameters()
        if parameter.dim() == 4
        and not parameter.is_contiguous(memory_format=torch.channels_last)
        and not isinstance(parameter, DTensor)
    ]


def _moments_follow(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> None:
    """Fused updates want weight and moments in one layout."""
    state = local_optimizer(optimizer).state
    for key, value in state.get(parameter, {}).items():
        if isinstance(value, Tensor) and value.shape == parameter.shape:
            state[parameter][key] = _with_strides(value, parameter.stride())


def _with_strides(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    if tensor.stride() == strides:
        return tensor
    return torch.empty_strided(
        tensor.shape, strides, dtype=tensor.dtype, device=tensor.device
    ).copy_(tensor)
