"""What a run knows about its activations and its latents, the same on every rank."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
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


class DeadLatents:
    """The latents that are dead at one moment of a run.

    On a GPU their number is sent to the host at once and read when it is asked for, so that asking
    waits for what was queued before this moment only, and the device has work meanwhile.

    Args:
        dead: Which are, bool [latents].

    Attributes:
        count: How many are, float64 scalar on the device.
    """

    def __init__(self, dead: Tensor) -> None:
        self.count = dead.sum(dtype=torch.float64)
        self._dead = dead
        self._numbers: Tensor | None = None
        self._sent: tuple[Tensor, torch.cuda.Event] | None = None
        if dead.is_cuda:
            arrives = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._sent = self.count.to("cpu", non_blocking=True), arrives
            arrives.record()

    def numbers(self) -> Tensor:
        """Their numbers, int64, ascending."""
        if self._numbers is None:
            self._numbers = self._find().view(-1)
        return self._numbers

    def _find(self) -> Tensor:
        if self._sent is None:
            return self._dead.nonzero()
        count, arrives = self._sent
        arrives.synchronize()
        return torch.nonzero_static(self._dead, size=int(count))


@dataclass
class LatentActivity:
    """How long each latent has been silent, in samples of the global batch.

    Attributes:
        silent_for: Samples since each latent last fired, int64 [latents].
        dead_after: Samples of silence after which a latent is dead.
        dead: The latents that are dead now.
    """

    silent_for: Tensor
    dead_after: int
    dead: DeadLatents = field(init=False)

    def __post_init__(self) -> None:
        self._find_dead()

    @classmethod
    def start(cls, latents: int, dead_after: int, device: torch.device) -> LatentActivity:
        """All latents count as having just fired."""
        return cls(torch.zeros(latents, dtype=torch.int64, device=device), dead_after)

    def update(self, fired: Tensor, count: int) -> None:
        """Take in a step of `count` samples, given how often each latent fired in it."""
        self.silent_for += count
        self.silent_for.masked_fill_(fired > 0, 0)
        self._find_dead()

    def revive(self, rows: Tensor) -> None:
        """Count some latents as having just fired."""
        self.silent_for[rows] = 0
        self._find_dead()

    def _find_dead(self) -> None:
        self.dead = DeadLatents(self.silent_for >= self.dead_after)
