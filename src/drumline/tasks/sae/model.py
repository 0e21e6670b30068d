"""The base of all SAE architectures: weights, input scaling, initialisation, and the contract.

Weights are laid out latent by latent, so that all that belongs to one latent is one row:
`W_enc` [latents, d_in] (SAELens has it transposed), `b_enc` [latents], `W_dec` [latents, d_out],
`b_dec` [d_out]. The scales of inputs and targets are buffers, so the weights alone are the whole
model. `encode`, `decode` and `reconstruct` speak in the units of the stored activations; the loss
and everything inside is in scaled units.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drumline.distributed import local
from drumline.tasks.sae.kernels import drop_parallel, normalise_rows

Numbers = Tensor | Callable[[], Tensor]
"""Numbers of some latents, int64; or what tells them, asked as late as can be: it may take long."""


class SAEOutput(NamedTuple):
    """What one forward gives, all in scaled units.

    Attributes:
        loss: [samples], with gradient.
        squared_error: [samples], of the full reconstruction, detached.
        active: [samples], latents that fired on each sample, detached.
        sparsity: [samples], cost of the active latents before its coefficient, detached.
        auxiliary: [samples], the architecture's auxiliary error before its coefficient, detached.
        fired: float64 [latents], samples that each latent fired on.
        smallest_kept: float64 [2], BatchTopK's sum of the smallest kept value of each group, and
            the number of groups; zeros elsewhere.
    """

    loss: Tensor
    squared_error: Tensor
    active: Tensor
    sparsity: Tensor
    auxiliary: Tensor
    fired: Tensor
    smallest_kept: Tensor


@dataclass(frozen=True)
class SAESize:
    """Shape and choices that every architecture shares.

    Attributes:
        d_in: Width of the inputs.
        d_out: Width of the targets; d_in for an autoencoder.
        latents: Number of latents.
        prefixes: Ends of nested prefixes, the last being `latents`.
        transcoder: Whether targets are another set than the inputs. If not, the decoder bias is
            subtracted from the input.
        tied: Whether the encoder starts as the decoder's transpose.
    """

    d_in: int
    d_out: int
    latents: int
    prefixes: tuple[int, ...]
    transcoder: bool = False
    tied: bool = True


class SAE(nn.Module, ABC):
    """A sparse autoencoder or transcoder; see the module's text for layout and units."""

    input_scale: Tensor
    target_scale: Tensor

    def __init__(self, size: SAESize) -> None:
        super().__init__()
        self.size = size
        self.W_enc = nn.Parameter(torch.empty(size.latents, size.d_in))
        self.W_dec = nn.Parameter(torch.empty(size.latents, size.d_out))
        self.b_dec = nn.Parameter(torch.zeros(size.d_out))
        self.register_buffer("input_scale", torch.ones(()))
        self.register_buffer("target_scale", torch.ones(()))
        self._start_weights()

    @property
    def latents(self) -> int:
        """Number of latents."""
        return self.size.latents

    def forward(
        self,
        inputs: Tensor,
        targets: Tensor | None = None,
        *,
        dead: Numbers | None = None,
        sparsity: float = 0.0,
    ) -> SAEOutput:
        """The loss of each sample and its parts.

        Args:
            inputs: [samples, d_in] as stored, any floating dtype.
            targets: [samples, d_out]; by default the inputs.
            dead: The dead latents, for AuxK; None or empty if there are none.
            sparsity: Coefficient of the cost of active latents.
        """
        scaled = self.scaled(inputs)
        wanted = scaled if targets is None else self.scaled_targets(targets)
        return self.losses(self.centred(scaled), wanted, dead, sparsity)

    @abstractmethod
    def losses(
        self, centred: Tensor, wanted: Tensor, dead: Numbers | None, sparsity: float
    ) -> SAEOutput:
        """As `forward`, from what the encoder sees and the scaled targets."""

    @abstractmethod
    def activate(self, centred: Tensor) -> Tensor:
        """Latents [samples, latents] at inference, from what the encoder sees."""

    @abstractmethod
    def reset_latents(self, rows: Tensor) -> list[nn.Parameter]:
        """Set biases and thresholds of some latents (int64 [n]) to their start.

        Returns:
            The parameters changed; each has the latents in dim 0.
        """

    def encode(self, inputs: Tensor) -> Tensor:
        """Latents [samples, latents] of inputs in stored units, dense."""
        return self.activate(self.centred(self.scaled(inputs)))

    def decode(self, latents: Tensor) -> Tensor:
        """Reconstruction [samples, d_out] in stored units."""
        return self.decode_scaled(latents) / self.target_scale

    def reconstruct(self, inputs: Tensor) -> Tensor:
        """`decode(encode(inputs))`: what replaces the activations, in stored units."""
        return self.decode(self.encode(inputs))

    def decode_scaled(self, latents: Tensor) -> Tensor:
        """Reconstruction [samples, d_out] in scaled units."""
        return (latents @ self.W_dec).to(self.W_dec.dtype) + self.b_dec

    def scaled(self, inputs: Tensor) -> Tensor:
        """Inputs in scaled units and the weights' dtype."""
        return inputs.to(self.W_enc.dtype) * self.input_scale

    def scaled_targets(self, targets: Tensor) -> Tensor:
        """Targets in scaled units and the weights' dtype."""
        return targets.to(self.W_dec.dtype) * self.target_scale

    def centred(self, scaled: Tensor) -> Tensor:
        """What the encoder sees: an autoencoder's input less the decoder bias."""
        return scaled if self.size.transcoder else scaled - self.b_dec

    def project(self, centred: Tensor, bias: Tensor | None) -> Tensor:
        """Pre-activations [samples, latents], in the weights' dtype even under autocast, for
        thresholds finer than bfloat16's steps.
        """
        return F.linear(centred, self.W_enc, bias).to(self.W_enc.dtype)

    @torch.no_grad()
    def start_bias(self, bias: Tensor) -> None:
        """Set the decoder bias, [d_out] in scaled units."""
        self.b_dec.copy_(bias)

    @torch.no_grad()
    def set_scales(self, inputs: float, targets: float) -> None:
        """Set what inputs and targets are multiplied by."""
        self.input_scale.fill_(inputs)
        self.target_scale.fill_(targets)

    @torch.no_grad()
    def normalise_decoder(self) -> None:
        """Bring every decoder row to unit norm."""
        normalise_rows(local(self.W_dec))

    @torch.no_grad()
    def drop_parallel_gradient(self) -> None:
        """Take from each decoder row's gradient the part along the row.

        That part only changes the norm, which `normalise_decoder` undoes, yet Adam would count
        it in its moments (Bricken et al. 2023).
        """
        if self.W_dec.grad is not None:
            drop_parallel(local(self.W_dec.grad), local(self.W_dec))

    @torch.no_grad()
    def _start_weights(self) -> None:
        nn.init.normal_(self.W_dec)
        self.normalise_decoder()
        if self.size.tied:
            self.W_enc.copy_(self.W_dec)
        else:
            nn.init.kaiming_uniform_(self.W_enc, a=math.sqrt(5))


def counts_of_fired(active: Tensor) -> Tensor:
    """How many samples each latent fired on, float64 [latents], from a boolean [samples, F]."""
    return active.sum(dim=0).to(torch.float64)
