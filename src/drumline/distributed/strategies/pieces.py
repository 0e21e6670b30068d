"""Tensors in pieces (DTensor) and whole: putting together, and cutting this rank's piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from drumline.distributed.control import ControlPlane


@dataclass(frozen=True)
class Whole:
    """Weights put together."""

    tensors: dict[str, Tensor]

    def state_dict(self) -> dict[str, Tensor]:
        """By name; shared ones are the same tensor."""
        return self.tensors


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


@torch.no_grad()
def send_from_rank_zero(model: nn.Module, device: torch.device) -> None:
    """Make models that were given ready equal on all ranks, as DDP does."""
    for tensor in [*model.parameters(), *model.buffers()]:
        there = tensor.detach().to(device)
        dist.broadcast(there, 0)
        tensor.copy_(there)


def square_sum(gradients: Sequence[Tensor], device: torch.device) -> Tensor:
    """Sum of the squares of whole gradients: float64, from each rank's pieces, added up over the
    ranks that hold different ones.
    """
    sums: dict[Any, Tensor] = {}
    for gradient in gradients:
        piece = local(gradient).to(device).double().square().sum()
        sums[_cut_over(gradient)] = sums.get(_cut_over(gradient), 0) + piece
    total = torch.zeros((), dtype=torch.float64, device=device)
    for groups in sorted(sums, key=len):
        for group in groups:
            dist.all_reduce(sums[groups], group=group)
        total += sums[groups]
    return total


def clip_pieces(pieces: Sequence[Tensor], max_norm: float, norm: Tensor) -> None:
    """Scale this rank's pieces in place, as torch does whole gradients of that norm."""
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for piece in pieces:
        piece.mul_(factor.to(piece.device))


def first_bad_piece(model: nn.Module, control: ControlPlane) -> str | None:
    """Name of the first parameter of which any rank has a piece of a gradient that is not finite.

    All ranks ask together, with the same names in the same order.
    """
    named = list(model.named_parameters())
    gradients = (None if p.grad is None else local(p.grad) for _, p in named)
    bad = [n for n, g in enumerate(gradients) if g is not None and not torch.isfinite(g).all()]
    last = len(named)
    first = last - control.vote(left=last - (bad[0] if bad else last))["left"]
    return named[first][0] if first < last else None


def _cut_over(gradient: Tensor) -> tuple[Any, ...]:
    """The groups whose ranks hold different pieces of a gradient."""
    if not isinstance(gradient, DTensor):
        return ()
    mesh = gradient.device_mesh
    return tuple(
        mesh.get_group(axis)
        for axis, placement in enumerate(gradient.placements)
        if not placement.is_replicate()
    )


def _assembled(piece: Tensor, like: DTensor) -> DTensor:
    return DTensor.from_local(
        piece,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )
