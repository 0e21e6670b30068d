"""The k largest of many numbers, without sorting them all.

`torch.topk` reads a row several times. The rows here are long and k is small, so it is asked for
far less: the numbers are dealt to bins, and only the k bins with the highest maxima can hold one
of the k largest. One pass finds the maxima; then a choice is made among them, and one among what
lies in the bins chosen. On a GPU that is two kernels (`kernels.largest_of_rows`) where a row's
maxima and its chosen bins are few enough to be looked at at once, as they are for one sample.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from drumline.distributed.kind import is_gpu
from drumline.tasks.sae import torch_kernels
from drumline.tasks.sae.kernels import MOST_AT_ONCE, largest_of_rows

LEAST = 8
"""Smaller bins do not pay."""


def largest(rows: Tensor, count: int) -> Tensor:
    """Where the `count` largest of each row of [n, width] stand, int64 [n, count], ascending.

    As `rows.topk(count).indices`, sorted; of equal numbers it may name others.
    """
    rows, width = rows.detach(), rows.shape[1]
    size = bin_size(width, count)
    if size < LEAST:
        return rows.topk(count, dim=-1, sorted=False).indices.sort(dim=-1).values
    at_once = max(width // size, size * count) <= MOST_AT_ONCE and rows.dtype is not torch.float64
    if at_once and (torch.compiler.is_compiling() or is_gpu(rows.device)):
        return largest_of_rows(rows, count, size)
    return torch_kernels.largest_of_rows(rows, count, size)


def bin_size(width: int, count: int) -> int:
    """Numbers in a bin: a power of two that divides `width`, at most the square root of
    `width / count`, where maxima and what lies in the chosen bins are equally many.
    """
    wanted = math.isqrt(width // count)
    while wanted & (wanted - 1):
        wanted &= wanted - 1
    return min(wanted, width & -width)
