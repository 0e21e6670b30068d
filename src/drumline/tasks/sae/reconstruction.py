"""What a reconstruction costs: per-sample sums of squares, also of nested prefixes and of AuxK.

Nothing here looks beyond one sample, so sums over samples are the same however a batch is cut.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def squared_errors(wanted: Tensor, got: Tensor) -> Tensor:
    """||wanted - got||^2 of each sample, summed over the last dim."""
    return (wanted - got).square().sum(dim=-1)


def decode_nested(latents: Tensor, weight: Tensor, bias: Tensor, ends: Sequence[int]) -> Tensor:
    """Reconstructions from the first `ends[p]` latents for each p (Bussmann et al. 2025).

    Args:
        latents: [samples, latents].
        weight: [latents, width].
        bias: [width].
        ends: Ascending sizes of the prefixes, the last being all.

    Returns:
        [prefixes, samples, width] in the dtype of `weight`.
    """
    starts = [0, *ends[:-1]]
    parts = [
        (latents[:, start:end] @ weight[start:end]).to(weight.dtype)
        for start, end in zip(starts, ends, strict=True)
    ]
    return accumulate(torch.stack(parts), bias)


def accumulate(parts: Tensor, bias: Tensor) -> Tensor:
    """Prefix reconstructions from what each range of latents adds, [prefixes, samples, width]."""
    return (parts if len(parts) == 1 else parts.cumsum(dim=0)) + bias


def auxk_errors(
    residual: Tensor,
    inputs: Tensor,
    encoder: tuple[Tensor, Tensor],
    decoder: Tensor,
    *,
    dead: Tensor,
    count: int,
) -> Tensor:
    """Error of the top `count` dead latents in modelling what the living left over, [samples].

    AuxK of Gao et al. 2024 (arXiv 2406.04093, appendix A.2): ||e - e_hat||^2 with the residual e
    held fixed. Inputs are held fixed too, so that nothing but the dead latents' rows gets a
    gradient.

    Args:
        residual: wanted - reconstruction, [samples, width].
        inputs: What the encoder sees, [samples, d_in].
        encoder: Weight [latents, d_in] and bias [latents].
        decoder: [latents, width].
        dead: Numbers of the dead latents, int64 [n].
        count: Most latents to use for a sample.
    """
    weight, bias = (part[dead] for part in encoder)
    values = F.linear(inputs.detach(), weight, bias)
    if len(dead) > count:
        kept = values.topk(count, dim=-1, sorted=False).indices
        values = values * torch.zeros_like(values).scatter_(-1, kept, 1.0)
    modelled = (F.relu(values) @ decoder[dead]).to(decoder.dtype)
    return squared_errors(residual.detach(), modelled)
