"""The architectures' losses written directly, sample by sample, for float64 autograd.

Nothing here uses the package: plain indexing and dense products, with hand-written
pseudo-derivatives where the papers define them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Weights = dict[str, Tensor]


def reconstruction_cost(latents: Tensor, wanted: Tensor, w: Weights, ends: Sequence[int]) -> Tensor:
    """Sum over prefixes of the squared error of one sample."""
    cost = wanted.new_zeros(())
    for end in ends:
        cost = cost + ((wanted - latents[:end] @ w["W_dec"][:end] - w["b_dec"]) ** 2).sum()
    return cost


def topk_loss(x: Tensor, w: Weights, k: int, ends: Sequence[int]) -> Tensor:
    total = x.new_zeros(())
    for sample in x:
        before = w["W_enc"] @ (sample - w["b_dec"]) + w["b_enc"]
        smallest = before.detach().sort(descending=True).values[k - 1]
        latents = torch.where(before >= smallest, before.clamp(min=0), 0.0)
        total = total + reconstruction_cost(latents, sample, w, ends)
    return total


def batchtopk_loss(x: Tensor, w: Weights, k: int, group: int, ends: Sequence[int]) -> Tensor:
    total = x.new_zeros(())
    for start in range(0, len(x), group):
        samples = x[start : start + group]
        before = torch.stack([w["W_enc"] @ (s - w["b_dec"]) + w["b_enc"] for s in samples])
        ranked = before.detach().flatten().sort(descending=True).values
        smallest = ranked[k * len(samples) - 1]
        latents = torch.where(before >= smallest, before.clamp(min=0), 0.0)
        for sample, row in zip(samples, latents, strict=True):
            total = total + reconstruction_cost(row, sample, w, ends)
    return total


def standard_loss(x: Tensor, w: Weights, coefficient: float, ends: Sequence[int]) -> Tensor:
    total = x.new_zeros(())
    for sample in x:
        latents = (w["W_enc"] @ (sample - w["b_dec"]) + w["b_enc"]).clamp(min=0)
        norms = (w["W_dec"] ** 2).sum(dim=1).sqrt()
        total = total + reconstruction_cost(latents, sample, w, ends)
        total = total + coefficient * (latents * norms).sum()
    return total


def gated_loss(x: Tensor, w: Weights, coefficient: float, ends: Sequence[int]) -> Tensor:
    frozen = {"W_dec": w["W_dec"].detach(), "b_dec": w["b_dec"].detach()}
    total = x.new_zeros(())
    for sample in x:
        projected = w["W_enc"] @ (sample - w["b_dec"])
        gate = projected + w["b_gate"]
        magnitude = (torch.exp(w["r_mag"]) * projected + w["b_mag"]).clamp(min=0)
        latents = torch.where(gate > 0, magnitude, 0.0)
        total = total + reconstruction_cost(latents, sample, w, ends)
        total = total + coefficient * gate.clamp(min=0).sum()
        total = total + reconstruction_cost(gate.clamp(min=0), sample, frozen, ends)
    return total


def jumprelu_gradients(
    x: Tensor, w: Weights, coefficient: float, bandwidth: float, ends: Sequence[int]
) -> Weights:
    """Closed form of equations 11 and 12 of arXiv 2407.14435, chained by hand.

    With e_p the residual of prefix p and g_j the derivative of the reconstruction cost by latent
    j: dz_j = g_j [z_j > t_j] and
    dt_j = -(K((z_j - t_j) / bandwidth) / bandwidth) (t_j g_j + coefficient).
    """
    grads = {name: torch.zeros_like(value) for name, value in w.items()}
    threshold = w["log_threshold"].exp()
    for sample in x:
        seen = sample - w["b_dec"]
        before = w["W_enc"] @ seen + w["b_enc"]
        is_open = (before > threshold).to(x.dtype)
        latents = before * is_open
        by_latent = torch.zeros_like(latents)
        for end in ends:
            residual = sample - latents[:end] @ w["W_dec"][:end] - w["b_dec"]
            by_latent[:end] += -2 * w["W_dec"][:end] @ residual
            grads["W_dec"][:end] += -2 * torch.outer(latents[:end], residual)
            grads["b_dec"] += -2 * residual
        by_before = by_latent * is_open
        grads["W_enc"] += torch.outer(by_before, seen)
        grads["b_enc"] += by_before
        grads["b_dec"] -= by_before @ w["W_enc"]
        kernel = ((before - threshold).abs() / bandwidth < 0.5).to(x.dtype) / bandwidth
        by_threshold = -kernel * (threshold * by_latent + coefficient)
        grads["log_threshold"] += by_threshold * threshold
    return grads
