"""TopK and BatchTopK: the largest pre-activations are kept, and only those are worked on."""

from __future__ import annotations

from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drumline.distributed import set_rows
from drumline.tasks.sae.largest import largest
from drumline.tasks.sae.model import SAE, Numbers, SAEOutput, SAESize
from drumline.tasks.sae.reconstruction import accumulate, auxk_errors, squared_errors
from drumline.tasks.sae.sparse import Places, decode_at, values_at

THRESHOLD_RATE = 0.01
"""Weight of a new step in BatchTopK's running threshold."""


class CountSAE(SAE):
    """What TopK and BatchTopK share: sparse arithmetic, and AuxK for dead latents.

    Args:
        size: Shape of the SAE.
        k: Latents kept for a sample, on average for BatchTopK.
        aux_k: Dead latents that model the residual; 0 for none.
        aux_coefficient: Weight of their error.
    """

    def __init__(self, size: SAESize, k: int, aux_k: int = 0, aux_coefficient: float = 0.0) -> None:
        super().__init__(size)
        self.k = k
        self.aux_k = aux_k
        self.aux_coefficient = aux_coefficient
        self.b_enc = nn.Parameter(torch.zeros(size.latents))

    @abstractmethod
    def kept(self, projected: Tensor) -> tuple[Tensor, Places]:
        """The entries of [samples, latents] that are kept, and their places."""

    def losses(
        self, centred: Tensor, wanted: Tensor, dead: Numbers | None, sparsity: float
    ) -> SAEOutput:
        """Squared error of every prefix, and AuxK's."""
        del sparsity
        centred = centred.detach()
        projected = F.linear(centred, self.W_enc.detach(), self.b_enc.detach())
        found, places = self.kept(projected)
        shift = None if self.size.transcoder else self.b_dec
        entries = values_at(centred, (self.W_enc, self.b_enc), found, places, shift=shift)
        values = F.relu(entries)
        parts = decode_at(values, self.W_dec, places, self.size.prefixes)
        nested = accumulate(parts, self.b_dec)
        errors = squared_errors(wanted, nested)
        loss = errors.sum(dim=0)
        auxiliary = torch.zeros_like(loss)
        if dead is not None and self.aux_k:
            numbers = dead() if callable(dead) else dead
            if len(numbers):
                auxiliary = self._auxiliary(wanted - nested[-1], centred, numbers)
                loss = loss + self.aux_coefficient * auxiliary
        fires = (values.detach() > 0).to(torch.float64)
        return SAEOutput(
            loss=loss,
            squared_error=errors[-1].detach(),
            active=fires.new_zeros(len(wanted)).index_add_(0, places.rows, fires),
            sparsity=torch.zeros_like(loss),
            auxiliary=auxiliary.detach(),
            fired=fires.new_zeros(self.latents).index_add_(0, places.columns, fires),
            smallest_kept=self.smallest_kept(values.detach(), places),
        )

    def smallest_kept(self, values: Tensor, places: Places) -> Tensor:
        """Statistic for an inference threshold; zeros where there is none."""
        del places
        return torch.zeros(2, dtype=torch.float64, device=values.device)

    @torch.no_grad()
    def reset_latents(self, rows: Tensor) -> list[nn.Parameter]:
        """Zero the encoder biases of some latents."""
        set_rows(self.b_enc, rows, 0.0)
        return [self.b_enc]

    def _auxiliary(self, residual: Tensor, centred: Tensor, dead: Tensor) -> Tensor:
        encoder = (self.W_enc, self.b_enc)
        return auxk_errors(residual, centred, encoder, self.W_dec, dead=dead, count=self.aux_k)


class TopKSAE(CountSAE):
    """The k largest of each sample (Gao et al. 2024, arXiv 2406.04093)."""

    def kept(self, projected: Tensor) -> tuple[Tensor, Places]:
        """The k largest of each row."""
        columns = largest(projected, self.k)
        return projected.gather(1, columns).view(-1), Places.from_columns(columns, self.latents)

    def activate(self, centred: Tensor) -> Tensor:
        """The k largest of each sample, zeros elsewhere."""
        projected = self.project(centred, self.b_enc)
        columns = largest(projected, self.k)
        values = F.relu(projected.gather(-1, columns))
        return torch.zeros_like(projected).scatter(-1, columns, values)


class BatchTopKSAE(CountSAE):
    """The k*group largest of each group of consecutive samples (Bussmann et al. 2024, 2412.06410).

    At inference a latent fires above a threshold, the running mean of the smallest value kept in
    a group; `follow_threshold` updates it from sums over all ranks.
    """

    threshold: Tensor

    def __init__(
        self, size: SAESize, k: int, group: int, aux_k: int = 0, aux_coefficient: float = 0.0
    ) -> None:
        super().__init__(size, k, aux_k, aux_coefficient)
        self.group = group
        self.register_buffer("threshold", torch.zeros(()))

    def kept(self, projected: Tensor) -> tuple[Tensor, Places]:
        """The k*group largest of each group; a last short group keeps k for each of its rows."""
        flat, whole = projected.view(-1), len(projected) // self.group
        per_group = self.group * self.latents
        grouped = flat[: whole * per_group].view(whole, per_group)
        starts = torch.arange(whole, device=flat.device) * per_group
        positions = (largest(grouped, self.k * self.group) + starts.unsqueeze(1)).view(-1)
        rest = len(projected) - whole * self.group
        if rest:
            last = largest(flat[whole * per_group :].unsqueeze(0), self.k * rest).squeeze(0)
            positions = torch.cat([positions, last + whole * per_group])
        return flat[positions], Places.from_flat(positions, *projected.shape)

    def activate(self, centred: Tensor) -> Tensor:
        """Latents above the threshold."""
        projected = F.relu(self.project(centred, self.b_enc))
        return projected * (projected > self.threshold)

    def smallest_kept(self, values: Tensor, places: Places) -> Tensor:
        """Sum over groups of the smallest positive value kept, and the groups that have one."""
        groups = torch.div(places.rows, self.group, rounding_mode="floor")
        count = -(-places.samples // self.group)
        positive = torch.where(values > 0, values.double(), torch.inf)
        smallest = positive.new_full((count,), torch.inf)
        smallest.scatter_reduce_(0, groups, positive, "amin")
        found = smallest.isfinite()
        return torch.stack([smallest.where(found, 0.0).sum(), found.sum().double()])

    @torch.no_grad()
    def follow_threshold(self, smallest_kept: Tensor) -> None:
        """Move the threshold towards a step's mean, given `smallest_kept` over all ranks."""
        total, groups = smallest_kept.unbind()
        before = self.threshold.double()
        mean = torch.where(groups > 0, total / groups, before)
        rate = torch.full_like(before, THRESHOLD_RATE).where(before > 0, 1.0)
        self.threshold.copy_(before + rate * (mean - before))
