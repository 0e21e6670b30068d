"""Architectures that pay for active latents: standard, Gated and JumpReLU. All work densely."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from drumline.distributed import set_rows
from drumline.tasks.sae.model import SAE, Numbers, SAEOutput, SAESize, counts_of_fired
from drumline.tasks.sae.reconstruction import decode_nested, squared_errors


class PenalisedSAE(SAE):
    """What they share: error of every prefix plus a cost of active latents."""

    @abstractmethod
    def latents_and_cost(self, centred: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Latents [samples, F], cost [samples], and what the auxiliary error decodes, if any."""

    def losses(
        self, centred: Tensor, wanted: Tensor, dead: Numbers | None, sparsity: float
    ) -> SAEOutput:
        """Squared error of every prefix, the cost of active latents, and the auxiliary error."""
        del dead
        latents, cost, gates = self.latents_and_cost(centred)
        nested = decode_nested(latents, self.W_dec, self.b_dec, self.size.prefixes)
        errors = squared_errors(wanted, nested)
        auxiliary = torch.zeros_like(cost)
        if gates is not None:
            frozen = self.W_dec.detach(), self.b_dec.detach()
            through_gates = decode_nested(gates, *frozen, self.size.prefixes)
            auxiliary = squared_errors(wanted, through_gates).sum(dim=0)
        active = latents.detach() > 0
        return SAEOutput(
            loss=errors.sum(dim=0) + sparsity * cost + auxiliary,
            squared_error=errors[-1].detach(),
            active=active.sum(dim=-1),
            sparsity=cost.detach(),
            auxiliary=auxiliary.detach(),
            fired=counts_of_fired(active),
            smallest_kept=torch.zeros(2, dtype=torch.float64, device=wanted.device),
        )

    def activate(self, centred: Tensor) -> Tensor:
        """Latents, the same as in training."""
        return self.latents_and_cost(centred)[0]


class StandardSAE(PenalisedSAE):
    """ReLU latents that cost their size times their decoder row's norm (Bricken et al. 2023; the
    weighting by the norm from Anthropic's update of April 2024).
    """

    def __init__(self, size: SAESize) -> None:
        super().__init__(size)
        self.b_enc = nn.Parameter(torch.zeros(size.latents))

    def latents_and_cost(self, centred: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """ReLU, and the L1 norm weighted by the decoder's row norms."""
        latents = F.relu(self.project(centred, self.b_enc))
        return latents, (latents * self.W_dec.norm(dim=1)).sum(dim=-1), None

    @torch.no_grad()
    def reset_latents(self, rows: Tensor) -> list[nn.Parameter]:
        """Zero the encoder biases of some latents."""
        set_rows(self.b_enc, rows, 0.0)
        return [self.b_enc]


class GatedSAE(PenalisedSAE):
    """A gate decides whether a latent fires, a magnitude how much (Rajamanoharan et al. 2024,
    arXiv 2404.16014): gate W_enc x + b_gate, magnitude exp(r_mag) * (W_enc x) + b_mag.

    The L1 cost and the auxiliary error, whose decoder is frozen, train the gate.
    """

    def __init__(self, size: SAESize) -> None:
        super().__init__(size)
        self.r_mag = nn.Parameter(torch.zeros(size.latents))
        self.b_gate = nn.Parameter(torch.zeros(size.latents))
        self.b_mag = nn.Parameter(torch.zeros(size.latents))

    def latents_and_cost(self, centred: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Magnitudes behind open gates, the L1 norm of the gates, and the gates."""
        projected = self.project(centred, None)
        gates = projected + self.b_gate
        magnitudes = F.relu(projected * self.r_mag.exp() + self.b_mag)
        open_gates = F.relu(gates)
        return magnitudes * (gates > 0), open_gates.sum(dim=-1), open_gates

    @torch.no_grad()
    def reset_latents(self, rows: Tensor) -> list[nn.Parameter]:
        """Zero the biases and the rescaling of some latents."""
        changed = [self.r_mag, self.b_gate, self.b_mag]
        for parameter in changed:
            set_rows(parameter, rows, 0.0)
        return changed


class JumpReLUSAE(PenalisedSAE):
    """Latents pass above a learned threshold of their own, and each active one costs 1
    (Rajamanoharan et al. 2024, arXiv 2407.14435). The threshold is learned as its logarithm.
    """

    def __init__(self, size: SAESize, threshold: float, bandwidth: float) -> None:
        super().__init__(size)
        self.initial_threshold = threshold
        self.bandwidth = bandwidth
        self.b_enc = nn.Parameter(torch.zeros(size.latents))
        self.log_threshold = nn.Parameter(torch.full((size.latents,), threshold).log())

    def latents_and_cost(self, centred: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Pre-activations above their threshold, and how many there are."""
        projected = self.project(centred, self.b_enc)
        threshold = self.log_threshold.exp()
        latents = _JumpReLU.apply(projected, threshold, self.bandwidth)  # type: ignore[no-untyped-call]
        steps = _Step.apply(projected, threshold, self.bandwidth)  # type: ignore[no-untyped-call]
        return latents, steps.sum(dim=-1), None

    @torch.no_grad()
    def reset_latents(self, rows: Tensor) -> list[nn.Parameter]:
        """Zero the encoder biases of some latents and start their thresholds again."""
        set_rows(self.b_enc, rows, 0.0)
        start = torch.full((), self.initial_threshold, dtype=self.log_threshold.dtype).log()
        set_rows(self.log_threshold, rows, float(start))
        return [self.b_enc, self.log_threshold]


def _near(projected: Tensor, threshold: Tensor, bandwidth: float) -> Tensor:
    """Rectangle kernel: 1 where a value is within half a bandwidth of its threshold."""
    return ((projected - threshold).abs() < bandwidth / 2).to(projected.dtype)


class _JumpReLU(torch.autograd.Function):
    """z where z > t, with the pseudo-derivative -(t / bandwidth) K((z - t) / bandwidth) for t."""

    @staticmethod
    def forward(ctx: Any, projected: Tensor, threshold: Tensor, bandwidth: float) -> Tensor:
        ctx.save_for_backward(projected, threshold)
        ctx.bandwidth = bandwidth
        return projected * (projected > threshold)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        projected, threshold = ctx.saved_tensors
        near = _near(projected, threshold, ctx.bandwidth)
        for_threshold = -(threshold / ctx.bandwidth) * (near * grad).sum(dim=0)
        return grad * (projected > threshold), for_threshold, None


class _Step(torch.autograd.Function):
    """1 where z > t, with the pseudo-derivative -(1 / bandwidth) K((z - t) / bandwidth) for t, and
    none for z.
    """

    @staticmethod
    def forward(ctx: Any, projected: Tensor, threshold: Tensor, bandwidth: float) -> Tensor:
        ctx.save_for_backward(projected, threshold)
        ctx.bandwidth = bandwidth
        return (projected > threshold).to(projected.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None]:
        projected, threshold = ctx.saved_tensors
        near = _near(projected, threshold, ctx.bandwidth)
        return None, -(1 / ctx.bandwidth) * (near * grad).sum(dim=0), None
