"""What a few steps give, and how far that is from what they gave before.

Compared are the losses of all steps and every tensor's gradient in the first, where both sides have
the same weights; later gradients follow from weights that rounding has already moved apart.
Switches of the optimizer are compared by the first update of the weights, too: there, the gradient
is the same on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from drumline.distributed.strategies.pieces import local

ROUNDING = {"fp64": 1e-10, "fp32": 1e-4, "tf32": 5e-3, "fp16": 1e-2, "bf16": 5e-2}
"""Largest relative deviation that counts as rounding, by the arithmetic of the forward.

For fp32 it lies below what tf32 changes (its products have 10 bits: about 5e-4), so that a switch
that narrows the arithmetic unasked is found.
"""

SMALL = 0.1
"""A tensor whose gradient is under this part of the usual one's norm is measured against that:
what is zero but for rounding (a bias before a normalisation) has no relative deviation."""


@dataclass(frozen=True)
class Results:
    """Losses by step, and of the first step the gradients and the changes of the weights, by name;
    this rank's pieces, on the CPU.
    """

    losses: list[float]
    gradients: Mapping[str, Tensor]
    updates: Mapping[str, Tensor]


@dataclass(frozen=True)
class Deviation:
    """How far results are off, and in what most."""

    value: float
    what: str

    def __str__(self) -> str:
        return f"{self.what} by {self.value:.1e}"


def deviation(reference: Results, other: Results, *, updates: bool = False) -> Deviation:
    """The largest relative deviation of `other` from `reference`; infinite if something is missing
    or not finite that was there.

    Args:
        reference, other: Of the same steps from the same weights.
        updates: Whether the changes of the weights are compared, too.
    """
    found = [Deviation(0.0, "nothing"), *_of_losses(reference.losses, other.losses)]
    found += _of_tensors("the gradient of ", reference.gradients, other.gradients)
    if updates or not reference.gradients:
        found += _of_tensors("the update of ", reference.updates, other.updates)
    return max(found, key=lambda one: one.value)


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    """Copies of this rank's pieces of the gradients, on the CPU."""
    named = [(name, p.grad) for name, p in model.named_parameters() if p.grad is not None]
    return {name: _copy(local(gradient)) for name, gradient in named}


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Copies of this rank's pieces of the trained weights, on the CPU."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return {name: _copy(local(parameter.detach())) for name, parameter in named}


def _copy(tensor: Tensor) -> Tensor:
    return tensor.to("cpu", copy=True)


def _of_losses(reference: list[float], other: list[float]) -> Iterator[Deviation]:
    for step, (known, loss) in enumerate(zip(reference, other, strict=True), 1):
        if math.isfinite(known):
            off = abs(loss - known) / max(abs(known), 1e-30)
            yield Deviation(_or_infinite(off), f"the loss of step {step}")


def _of_tensors(
    what: str, reference: Mapping[str, Tensor], other: Mapping[str, Tensor]
) -> Iterator[Deviation]:
    for name in reference.keys() ^ other.keys():
        yield Deviation(math.inf, f"{what}{name}")
    norms = {name: _norm(tensor) for name, tensor in reference.items()}
    finite = [norm for norm in norms.values() if math.isfinite(norm)]
    usual = math.sqrt(sum(norm * norm for norm in finite) / max(1, len(finite)))
    for name in reference.keys() & other.keys():
        if math.isfinite(norms[name]) and usual > 0:  # fp16's first steps overflow in both
            off = _norm(other[name].double() - reference[name].double())
            yield Deviation(_or_infinite(off / max(norms[name], SMALL * usual)), f"{what}{name}")


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor.double()))


def _or_infinite(value: float) -> float:
    return value if math.isfinite(value) else math.inf
