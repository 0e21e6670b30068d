"""Which positions of a sequence an SAE is trained on, and replaced at.

A few positions act as attention sinks: their activations are hundreds of times longer than all
others (Sun et al. 2024, "Massive Activations in Large Language Models", arXiv 2402.17762) and
nearly constant. They would fill the squared error and the variance with what is no feature.
Usually that is position 0; now and then it is another, too.
"""

from __future__ import annotations

import torch
from torch import Tensor


def kept_positions(hidden: Tensor, *, drop_first: bool, outlier_ratio: float | None) -> Tensor:
    """The positions that count, bool [sequences, length].

    Each sequence is judged by itself, so it does not matter which others it is computed with.

    Args:
        hidden: Activations [sequences, length, width].
        drop_first: Leave out position 0.
        outlier_ratio: Leave out positions whose norm is more than this many times the median
            norm of their sequence; None keeps them.
    """
    kept = torch.ones(hidden.shape[:2], dtype=torch.bool, device=hidden.device)
    if drop_first:
        kept[:, 0] = False
    if outlier_ratio is not None:
        norms = hidden.float().norm(dim=-1)
        kept &= norms <= outlier_ratio * norms.median(dim=1, keepdim=True).values
    return kept
