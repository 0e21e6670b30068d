"""Parts that ranks hold of something whole: put together for a checkpoint, cut again afterwards."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from drumline.distributed import World

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def gathered(parts: Mapping[str, Tensor], world: World, dim: int) -> dict[str, Tensor]:
    """The whole tensors, on the CPU, from each rank's part, in rank order along `dim`.

    Bit for bit: each rank writes its part among zeros, and the bits are added as integers. Other
    dims may differ between ranks and are filled up with zeros. All ranks call it together.
    """
    shapes = {name: tuple(part.shape) for name, part in parts.items()}
    by_rank = world.control.gather(shapes if world.speaks else None)
    speakers = [rank for rank in by_rank if rank is not None]
    return {
        name: _whole(part, [shapes[name] for shapes in speakers], world, dim)
        for name, part in parts.items()
    }


def own_part(
    whole: Mapping[str, Tensor], first: int, last: int, device: torch.device, dim: int
) -> dict[str, Tensor]:
    """What belongs to first..last-1 along `dim`, copied to a device."""
    return {
        name: tensor.narrow(dim, first, last - first).to(device, copy=True)
        for name, tensor in whole.items()
    }


def _whole(part: Tensor, shapes: list[tuple[int, ...]], world: World, dim: int) -> Tensor:
    if len(shapes) == 1:
        return part.to("cpu", copy=True)
    shape = [max(sizes) for sizes in zip(*shapes, strict=True)]
    shape[dim] = sum(found[dim] for found in shapes)
    first = sum(found[dim] for found in shapes[: world.data_rank])
    whole = torch.zeros(shape, dtype=part.dtype, device=world.device)
    place = tuple(
        slice(first, first + size) if axis == dim else slice(0, size)
        for axis, size in enumerate(part.shape)
    )
    whole[place] = part.to(world.device)
    world.all_reduce(whole.view(_BITS[whole.element_size()]))
    return whole.cpu()
