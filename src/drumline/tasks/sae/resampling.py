"""Resampling: dead latents start again at samples that are badly reconstructed.

The method is that of Bricken et al. 2023 ("Towards Monosemanticity", neuron resampling): a dead
latent takes the direction of a sample drawn with probability proportional to its squared loss, its
encoder row gets 0.2 of the living rows' mean norm, its bias and optimizer moments are zeroed. Two
choices are ours: the direction is that of the sample less the decoder bias, as the encoder sees
it, and no sample is drawn twice, as two equal latents would stay equal.

All is a function of (seed, step): samples are cut into chunks of one size, each chunk is computed
on one rank, and the draw comes from a generator of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from drumline.distributed import gathered, moments, set_rows
from drumline.tasks.sae.data import Rows
from drumline.tasks.sae.model import SAE
from drumline.training.order import SampleOrder, mix

if TYPE_CHECKING:
    from drumline.distributed import World

ENCODER_FRACTION = 0.2
_CHUNK = 1024
_SAMPLES, _DRAW = 1, 2


class Resampler:
    """Where dead latents start again.

    Args:
        rows: The rows trained on.
        world: The world of this rank.
        seed: The run's seed.
        samples: Samples whose loss is computed.
        granularity: Samples whose losses hang together; chunks are whole multiples of it.
    """

    def __init__(
        self, rows: Rows, world: World, seed: int, samples: int, granularity: int = 1
    ) -> None:
        self.rows = rows
        self.world = world
        self.seed = seed
        self.samples = min(samples, len(rows))
        self.chunk = max(granularity, _CHUNK - _CHUNK % granularity)

    @torch.no_grad()
    def resample(
        self,
        sae: SAE,
        optimizer: torch.optim.Optimizer,
        dead: Tensor,
        step: int,
        sparsity: float = 0.0,
    ) -> None:
        """Move the dead latents, numbers int64 [n], and forget their optimizer moments."""
        numbers = self.numbers(step)
        with gathered(sae):  # ranks run different numbers of forwards here
            losses = self.losses(sae, numbers, sparsity)
            drawn = draw(losses, len(dead), mix(self.seed, step, _DRAW))
            inputs, targets = self._read([numbers[place] for place in drawn.tolist()])
            scaled = sae.scaled(inputs)
            seen = sae.centred(scaled)
            wanted = (scaled if targets is None else sae.scaled_targets(targets)) - sae.b_dec
        start_latents(sae, dead, seen, wanted)
        for parameter in (sae.W_enc, sae.W_dec, *sae.reset_latents(dead)):
            forget_moments(optimizer, parameter, dead)

    def numbers(self, step: int) -> list[int]:
        """The samples whose loss is computed at a step."""
        order = SampleOrder(len(self.rows), mix(self.seed, step, _SAMPLES))
        found: list[int] = order.samples(0, 0, self.samples).tolist()
        return found

    def losses(self, sae: SAE, numbers: list[int], sparsity: float) -> Tensor:
        """The loss of each sample, float64 on the CPU; the ranks take chunks in turn."""
        losses = torch.zeros(len(numbers), dtype=torch.float64, device=self.world.device)
        own = range(self.world.rank * self.chunk, len(numbers), self.world.size * self.chunk)
        for start in own:
            inputs, targets = self._read(numbers[start : start + self.chunk])
            losses[start : start + self.chunk] = sae(inputs, targets, sparsity=sparsity).loss.to(
                torch.float64
            )
        return self.world.all_reduce(losses).cpu()

    def _read(self, numbers: list[int]) -> tuple[Tensor, Tensor | None]:
        inputs, targets = self.rows.pairs(numbers)
        device = self.world.device
        return inputs.to(device), None if targets is None else targets.to(device)


def draw(losses: Tensor, count: int, seed: int) -> Tensor:
    """`count` places drawn in proportion to loss^2, int64; twice only if there are too few.

    Args:
        losses: float64 [samples] on the CPU.
        count: Places to draw.
        seed: Of the draw.
    """
    weights = torch.nan_to_num(losses, nan=0.0, posinf=0.0, neginf=0.0).square()
    if weights.sum() == 0:
        weights = torch.ones_like(weights)
    weights /= weights.max()
    generator = torch.Generator().manual_seed(seed & 0x7FFF_FFFF_FFFF_FFFF)
    again = count > int((weights > 0).sum())
    return torch.multinomial(weights, count, replacement=again, generator=generator)


@torch.no_grad()
def start_latents(sae: SAE, latents: Tensor, seen: Tensor, wanted: Tensor) -> None:
    """Point latents at samples: the encoder at what it saw, the decoder at what was wanted.

    Args:
        sae: The model.
        latents: Their numbers, int64 [n].
        seen: What the encoder saw, [n, d_in].
        wanted: Scaled targets less the decoder bias, [n, d_out].
    """
    alive = torch.ones(sae.latents, dtype=torch.bool, device=latents.device)
    alive[latents] = False
    with gathered(sae):
        norms = sae.W_enc.norm(dim=1)
        typical = norms[alive].mean() if alive.any() else norms.mean()
    set_rows(sae.W_enc, latents, _unit(seen) * (ENCODER_FRACTION * typical))
    set_rows(sae.W_dec, latents, _unit(wanted))


def forget_moments(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, rows: Tensor) -> None:
    """Zero what the optimizer remembers of some rows (Adam's moments, momentum)."""
    for value in moments(optimizer, parameter).values():
        if isinstance(value, Tensor) and value.shape == parameter.shape:
            set_rows(value, rows, 0.0)


def _unit(rows: Tensor) -> Tensor:
    return torch.nn.functional.normalize(rows, dim=1)
