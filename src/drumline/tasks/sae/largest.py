"""The k largest of many numbers, without sorting them all.

`torch.topk` reads a row several times. The rows here are long and k is small, so it is asked for
far less: the numbers are dealt to heaps, and only the k heaps with the highest tops can hold one of
the k largest. One pass finds the tops; `topk` then chooses among them, and among what lies in the
heaps chosen.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LEAST = 8
"""Smaller heaps do not pay."""


def largest(rows: Tensor, count: int) -> Tensor:
    """Where the `count` largest of each row of [n, width] stand, int64 [n, count], in no order.

    As `rows.topk(count, sorted=False).indices`; of equal numbers it may name others.
    """
    size = heap_size(rows.shape[1], count)
    if size < LEAST:
        return rows.topk(count, dim=-1, sorted=False).indices
    heaps = rows.reshape(
        len(rows), size, -1
    )  # neighbours lie in different heaps, and are read at once
    chosen = heaps.amax(dim=1).topk(count, dim=-1, sorted=False).indices
    left = heaps.gather(2, chosen.unsqueeze(1).expand(-1, size, -1)).flatten(1)
    best = left.topk(count, dim=-1, sorted=False).indices
    depth = torch.div(best, count, rounding_mode="floor")
    places: Tensor = chosen.gather(1, best - depth * count) + depth * heaps.shape[2]
    return places


def heap_size(width: int, count: int) -> int:
    """Numbers in a heap: a power of two that divides `width`, at most the square root of
    `width / count`, where tops and what lies in the chosen heaps are equally many.
    """
    wanted = math.isqrt(width // count)
    while wanted & (wanted - 1):
        wanted &= wanted - 1
    return min(wanted, width & -width)
