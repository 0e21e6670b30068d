"""Running mean and deviation of what all environments of all ranks have given.

Kept in float64 and updated once a rollout with sums over all ranks, so every rank holds the same
and within a rollout nothing moves: what was acted on is what is learned from.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from drumline.distributed import World

LEAST_DEVIATION = 1e-4
"""Features that hardly ever change are not blown up beyond this."""


class RunningMoments:
    """Count, mean and mean squared deviation of numbers seen so far.

    Merged by Chan, Golub and LeVeque (1979): exact in any order, without cancellation.

    Args:
        size: Numbers in one sample.
        device: Where they are.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self.count = 0
        self.mean = torch.zeros(size, dtype=torch.float64, device=device)
        self.variance = torch.zeros_like(self.mean)

    def update(self, samples: Tensor, world: World) -> None:
        """Take in samples [..., size] of every rank. All ranks call it together."""
        flat = samples.reshape(-1, len(self.mean)).to(torch.float64)
        count, mean, variance = global_moments(flat, world)
        total = self.count + count
        away, part = mean - self.mean, count / total
        self.variance = (
            self.variance * (1 - part) + variance * part + away.square() * part * (1 - part)
        )
        self.mean = self.mean + away * part
        self.count = total

    def deviation(self) -> Tensor:
        """Standard deviation, at least `LEAST_DEVIATION`; 1 before anything was seen."""
        if not self.count:
            return torch.ones_like(self.mean)
        return self.variance.sqrt().clamp(min=LEAST_DEVIATION)

    def state_dict(self) -> dict[str, Any]:
        """Count, mean and variance."""
        return {"count": self.count, "mean": self.mean.cpu(), "variance": self.variance.cpu()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.count = int(state["count"])
        self.mean = state["mean"].to(self.mean.device, copy=True)
        self.variance = state["variance"].to(self.mean.device, copy=True)


def global_moments(samples: Tensor, world: World) -> tuple[int, Tensor, Tensor]:
    """Count, mean [size] and variance [size] of samples [n, size] over all ranks together.

    In two passes: the mean first, then deviations from it. All ranks call it together.
    """
    sums = torch.cat([samples.sum(dim=0), samples.new_tensor([float(len(samples))])])
    world.all_reduce(sums)
    count = int(sums[-1])
    mean = sums[:-1] / count
    squares = world.all_reduce((samples - mean).square().sum(dim=0))
    return count, mean, squares / count
