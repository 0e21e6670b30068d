"""Operators whose result depends on values, which fake tensors do not have.

A value read on the host becomes a one; a selection by a mask becomes a given part of its elements.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def without_values(
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    selected: float,
    *,
    truth: bool = False,
) -> tuple[Any, str]:
    """An operator's result, and its name if the result's size had to be guessed.

    Args:
        func: The operator.
        args, kwargs: What it was called with.
        selected: Part of the elements taken to be selected by a mask.
        truth: What a truth value read on the host becomes.
    """
    fake = _is_fake(args)
    if fake and func is aten._local_scalar_dense.default and args[0].constant is None:
        return truth if args[0].dtype is torch.bool else _one(args[0].dtype), ""
    if fake and func is aten.nonzero.default:
        return _places(args[0], selected), "nonzero"
    if fake and func is aten.masked_select.default:
        count = _count(args[1], selected)
        return args[0].new_empty(count), "masked_select"
    if fake and func in (aten.index.Tensor, aten.index_put_.default) and _by_mask(args[1]):
        indices, guessed = _as_places(args[0], args[1], selected)
        if func is aten.index_put_.default and args[2].numel() == 1:
            return func(*args, **kwargs), ""  # torch fills by the mask and selects nothing
        return func(args[0], indices, *_values(func, args, indices), **kwargs), guessed
    return func(*args, **kwargs), ""


def _is_fake(args: tuple[Any, ...]) -> bool:
    from torch._subclasses import FakeTensor

    return bool(args) and isinstance(args[0], FakeTensor)


def _one(dtype: torch.dtype) -> int | float:
    return 1.0 if dtype.is_floating_point else 1


def _count(mask: Tensor, selected: float) -> int:
    return math.ceil(mask.numel() * selected)


def _places(mask: Tensor, selected: float) -> Tensor:
    return mask.new_empty((_count(mask, selected), mask.dim()), dtype=torch.int64)


def _by_mask(indices: Any) -> bool:
    return any(index is not None and index.dtype is torch.bool for index in indices)


def _as_places(table: Tensor, indices: Any, selected: float) -> tuple[list[Any], str]:
    """Masks as the integer indices that a kernel makes of them."""
    found: list[Any] = []
    for index in indices:
        if index is not None and index.dtype is torch.bool:
            count = _count(index, selected)
            found += [table.new_empty(count, dtype=torch.int64) for _ in range(index.dim())]
        else:
            found.append(index)
    return found, "index by a mask"


def _values(func: Any, args: tuple[Any, ...], indices: list[Any]) -> tuple[Any, ...]:
    if func is not aten.index_put_.default:
        return args[2:]
    shape = aten.index.Tensor(args[0], indices).shape
    return (args[2].new_empty(shape), *args[3:])
