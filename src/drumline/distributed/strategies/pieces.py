"""Tensors in pieces (DTensor) and whole: putting together, and cutting this rank's piece."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


def local(tensor: Tensor) -> Tensor:
    """This rank's piece; a whole tensor is its own piece. Changing it changes the tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def where(tensor: DTensor) -> tuple[slice, ...]:
    """The range of indices of this rank's piece, for each dim."""
    shape, offset = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    return tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))


def whole(value: Any, *, keep: bool = True) -> Any:
    """A tensor put together from all ranks, on the CPU; what is not in pieces stays as it is.

    Args:
        value: A tensor or a plain value; all ranks of its mesh call this together.
        keep: Whether this rank wants the result.
    """
    if not isinstance(value, DTensor):
        return value
    piece, mesh = value.to_local(), value.device_mesh
    if piece.device.type != mesh.device_type:  # offloaded: the mesh cannot talk from there
        value = _assembled(piece.to(mesh.device_type), value)
    full = value.full_tensor()
    if not keep:
        return None
    if full.untyped_storage().nbytes() != full.nbytes:  # padded to equal pieces
        full = full.clone(memory_format=torch.contiguous_format)
    return full.cpu()


@torch.no_grad()
def piece_like(value: Tensor, like: Tensor) -> Tensor:
    """This rank's piece of a whole tensor, cut, placed and laid out in memory as `like`; a copy.

    The layout matters: torch's fused Adam on the CPU takes weight and moments to have one, and
    does not look.
    """
    if not isinstance(like, DTensor):
        return torch.empty_like(like, dtype=value.dtype).copy_(value)
    here = like.to_local()
    return _assembled(value[where(like)].to(here.device, copy=True), like)


def _assembled(piece: Tensor, like: DTensor) -> DTensor:
    return DTensor.from_local(
        piece,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )
