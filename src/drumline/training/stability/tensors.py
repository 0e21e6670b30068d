"""Small helpers on nested values and on parameters that may be sharded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors in nested tuples, lists, mappings and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif is_dataclass(value) and not isinstance(value, type):
        yield from tensors_in(vars(value))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)


def is_finite(tensor: Tensor) -> bool:
    """Whether all values are finite; waits for the device."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    return bool(torch.isfinite(tensor).all())


def without_masks(tensor: Tensor) -> Tensor:
    """The tensor without its minus infinities, which masks of attention are made of."""
    if not tensor.is_floating_point():
        return tensor
    return torch.where(tensor == -torch.inf, 0.0, tensor)


def is_sharded(model: nn.Module) -> bool:
    """Whether any parameter is spread over ranks."""
    return any(isinstance(p, DTensor) or p.is_meta for p in model.parameters())
