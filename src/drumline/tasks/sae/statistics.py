"""What a run knows about its activations and its latents, the same on every rank."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from drumline.distributed import World

_CHUNK = 1024


def mean_norm(rows: Tensor) -> float:
    """Mean Euclidean norm of float64 rows [n, width]."""
    return float(rows.norm(dim=1).mean())


def input_scale(rows: Tensor) -> float:
    """What rows [n, width] are multiplied by for a mean norm of sqrt(width); 1 if all are zero."""
    norm = mean_norm(rows)
    return math.sqrt(rows.shape[1]) / norm if norm > 0 else 1.0


def geometric_median(rows: Tensor, *, iterations: int = 200, tolerance: float = 1e-10) -> Tensor:
    """The point with the least sum of distances to float64 rows [n, width], by Weiszfeld (1937).

    Stops once a step moves by less than `tolerance` of the mean distance.
    """
    median = rows.mean(dim=0)
    for _ in range(iterations):
        distances = torch.cat([(part - median).norm(dim=1) for part in torch.split(rows, _CHUNK)])
        scale = distances.mean()
        if scale == 0:
            break
        weights = 1.0 / distances.clamp_min(1e-12 * float(scale))
        nearer = (weights.unsqueeze(0) @ rows).squeeze(0) / weights.sum()
        moved, median = (nearer - median).norm(), nearer
        if moved <= tolerance * scale:
            break
    return median


def of_rank_zero(world: World, value: Tensor) -> Tensor:
    """Rank 0's value on all ranks, for what each computed but the last bit may differ in."""
    own = value.to(world.device)
    return world.all_reduce(own if world.rank == 0 else torch.zeros_like(own))


@dataclass
class LatentActivity:
    """How long each latent has been silent, in samples of the global batch.

    Attributes:
        silent_for: Samples since each latent last fired, int64 [latents].
        dead_after: Samples of silence after which a latent is dead.
    """

    silent_for: Tensor
    dead_after: int

    @classmethod
    def start(cls, latents: int, dead_after: int, device: torch.device) -> LatentActivity:
        """All latents count as having just fired."""
        return cls(torch.zeros(latents, dtype=torch.int64, device=device), dead_after)

    def update(self, fired: Tensor, count: int) -> None:
        """Take in a step of `count` samples, given how often each latent fired in it."""
        self.silent_for += count
        self.silent_for[fired > 0] = 0

    def revive(self, rows: Tensor) -> None:
        """Count some latents as having just fired."""
        self.silent_for[rows] = 0

    def dead(self) -> Tensor:
        """Numbers of the dead latents, int64, ascending."""
        return (self.silent_for >= self.dead_after).nonzero().view(-1)
