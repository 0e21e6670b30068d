"""Metrics on the held-out samples, exact over any number of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from drumline.tasks.sae.config import HeldOutConfig
from drumline.tasks.sae.data import Rows
from drumline.tasks.sae.model import SAE

if TYPE_CHECKING:
    from drumline.distributed import World


class HeldOutSums:
    """Sums over samples from which all metrics follow, in one float64 vector.

    Sums of squares are taken about `shift`, a point near the data, so that the variance does not
    drown in a large mean.
    """

    def __init__(self, latents: int, shift: Tensor) -> None:
        self.shift = shift.to(torch.float64)
        self.width = len(self.shift)
        size = 5 + self.width + latents
        self.sums = torch.zeros(size, dtype=torch.float64, device=shift.device)

    def add(self, wanted: Tensor, got: Tensor, latents: Tensor) -> None:
        """Take in samples: targets and reconstructions [n, width], and latents [n, F]."""
        wanted, got = wanted.to(torch.float64), got.to(torch.float64)
        shifted = wanted - self.shift
        active = (latents > 0).sum(dim=0).to(torch.float64)
        cosines = torch.nn.functional.cosine_similarity(wanted, got, dim=-1)
        heads = [
            active.new_tensor(len(wanted)),
            (wanted - got).square().sum(),
            shifted.square().sum(),
            active.sum(),
            cosines.sum(),
        ]
        self.sums += torch.cat([torch.stack(heads), shifted.sum(dim=0), active])

    def metrics(self, sums: Tensor, dense_above: float) -> dict[str, float]:
        """Metrics from the sums over all ranks."""
        count, error, squares, active, cosines = sums[:5].tolist()
        mean = sums[5 : 5 + self.width] / count
        fired = sums[5 + self.width :] / count
        variance = squares - count * float(mean.square().sum())
        dense = int((fired > dense_above).sum())
        silent = int((fired == 0).sum())
        return {
            "fvu": error / variance if variance > 0 else float("nan"),
            "l0": active / count,
            "reconstruction_cosine": cosines / count,
            "dense_latents": float(dense),
            "dense_fraction": dense / len(fired),
            "silent_fraction": silent / len(fired),
        }


@torch.no_grad()
def evaluate_held_out(
    sae: SAE, rows: Rows, world: World, config: HeldOutConfig
) -> dict[str, float]:
    """Metrics over the held-out rows, each rank reading chunks in turn; none if none is held out.

    Returns:
        fvu: Sum of squared errors over the sum of squared distances from the mean.
        l0: Active latents a sample.
        reconstruction_cosine: Mean cosine of target and reconstruction.
        dense_latents, dense_fraction: Latents that fire on more than `dense_above` of the samples.
        silent_fraction: Part of the latents that fire on none of them.
    """
    if not rows.held_out:
        return {}
    first, last = rows.trained, rows.trained + rows.held_out
    sums = HeldOutSums(sae.latents, _scaled_target(sae, rows, [first], world)[1][0])
    for start in range(first + world.rank * config.chunk, last, world.size * config.chunk):
        numbers = list(range(start, min(start + config.chunk, last)))
        scaled, wanted = _scaled_target(sae, rows, numbers, world)
        latents = sae.activate(sae.centred(scaled))
        sums.add(wanted, sae.decode_scaled(latents), latents)
    return sums.metrics(world.all_reduce(sums.sums), config.dense_above)


def _scaled_target(sae: SAE, rows: Rows, numbers: list[int], world: World) -> tuple[Tensor, Tensor]:
    inputs, targets = rows.pairs(numbers)
    scaled = sae.scaled(inputs.to(world.device))
    if targets is None:
        return scaled, scaled
    return scaled, sae.scaled_targets(targets.to(world.device))
