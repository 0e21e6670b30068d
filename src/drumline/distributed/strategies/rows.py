"""Changing single rows of parameters and of an optimizer's state, in whatever mode they are.

For tasks that reach into a model between steps. A sharded parameter is cut along dim 0, so that a
row is whole on one rank.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor

from drumline.distributed.strategies.pieces import where


@torch.no_grad()
def set_rows(tensor: Tensor, rows: Tensor, values: Tensor | float) -> None:
    """Set rows of a tensor in place; every rank gives the same and changes those it holds.

    Args:
        tensor: Whole, or in pieces along dim 0.
        rows: Their numbers, int64 [n].
        values: [n, ...], or one number for all.
    """
    if not isinstance(tensor, DTensor):
        tensor[rows] = values
        return
    held = where(tensor)[0]
    mine = (rows >= held.start) & (rows < held.stop)
    piece = tensor.to_local()
    mine_there = rows[mine].to(piece.device) - held.start
    piece[mine_there] = values[mine].to(piece) if isinstance(values, Tensor) else values


def moments(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Any]:
    """What the optimizer remembers of a parameter on this rank; empty if another rank does."""
    inner = optimizer.optim if isinstance(optimizer, ZeroRedundancyOptimizer) else optimizer
    found: dict[str, Any] = inner.state.get(parameter, {})
    return found
