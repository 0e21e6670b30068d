"""The operators of `kernels` in torch's own terms."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_TINY = 1e-12
_ROWS_AT_ONCE = 4096
"""What is worked out of so many rows stays in a processor's cache."""


def bag_sum(index: Tensor, table: Tensor, starts: Tensor, weights: Tensor) -> Tensor:
    """See `kernels.bag_sum`."""
    return F.embedding_bag(index, table, starts, per_sample_weights=weights, mode="sum")


def bag_products(
    sums: Tensor, bags: Tensor, index: Tensor, table: Tensor, starts: Tensor
) -> Tensor:
    """See `kernels.bag_products`."""
    products: Tensor = torch.ops.aten._embedding_bag_per_sample_weights_backward(
        sums, table, index, starts, bags, 0
    )
    return products


def largest_of_rows(rows: Tensor, count: int, size: int) -> Tensor:
    """See `kernels.largest_of_rows`; of any type, and bins of any size."""
    samples, width = rows.shape
    bins = rows.reshape(samples, size, width // size)  # of neighbours each is in another bin
    chosen = bins.amax(dim=1).topk(count, dim=-1, sorted=False).indices
    left = bins.gather(2, chosen.unsqueeze(1).expand(-1, size, -1)).flatten(1)
    best = left.topk(count, dim=-1, sorted=False).indices
    depth = torch.div(best, count, rounding_mode="floor")
    places = chosen.gather(1, best - depth * count) + depth * bins.shape[2]
    return places.sort(dim=-1).values


def normalise_rows(rows: Tensor) -> None:
    """See `kernels.normalise_rows`."""
    for some in torch.split(rows, _ROWS_AT_ONCE):
        some.div_(some.norm(dim=1, keepdim=True).clamp_min(_TINY))


def drop_parallel(change: Tensor, rows: Tensor) -> None:
    """See `kernels.drop_parallel`."""
    parts = (torch.split(tensor, _ROWS_AT_ONCE) for tensor in (change, rows))
    for some, along in zip(*parts, strict=True):
        length = along.norm(dim=1, keepdim=True).clamp_min(_TINY)
        part = (some * along).sum(dim=1, keepdim=True) / length.square()
        some.addcmul_(part, along, value=-1)
