"""A number for the exact bits of a tensor, computed where the tensor is, in one pass.

Every element's bits, as an integer, are multiplied by an odd number that depends on the position,
and all is added modulo 2^64. Flipping one bit changes the sum by an odd multiple of a power of two
below 2^64, which is never zero: every single-bit flip is seen. Equal bits give equal numbers on
every device, as additions of integers may come in any order.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from drumline.training.order import signed

CHUNK = 1 << 20
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio, odd: spreads positions over all bits
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprint(tensor: Tensor) -> Tensor:
    """The fingerprint of a tensor of any dtype and shape: an int64 scalar on its device."""
    bits = _bits(tensor.detach())
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    weights = _weights(min(CHUNK, bits.numel()), bits.device)
    for number, chunk in enumerate(torch.split(bits, CHUNK)):
        part = (chunk * weights[: chunk.numel()]).sum()
        total = total + part * signed((2 * number + 1) * _GOLDEN)
    return total


def fingerprints(parameters: dict[str, nn.Parameter]) -> Tensor:
    """The fingerprint of each parameter, int64 of shape [parameters], on the CPU."""
    if not parameters:
        return torch.zeros(0, dtype=torch.int64)
    return torch.stack([fingerprint(p) for p in parameters.values()]).cpu()


def combine(numbers: list[int]) -> int:
    """One number, within int64, for a list of them; a change of one always changes it."""
    return signed(sum(n * ((2 * i + 1) * _GOLDEN) for i, n in enumerate(numbers)))


def replicated(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that this rank holds whole, by name."""
    named = model.named_parameters()
    return {n: p for n, p in named if not isinstance(p, DTensor) and not p.is_meta}


def _bits(tensor: Tensor) -> Tensor:
    """The elements' bits as integers, flat."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.resolve_neg().view(_INTEGERS[tensor.element_size()]).reshape(-1)


def _weights(count: int, device: torch.device) -> Tensor:
    """Odd int64 numbers, all different."""
    positions = torch.arange(count, dtype=torch.int64, device=device)
    return (positions * signed(2 * _GOLDEN)) | 1
