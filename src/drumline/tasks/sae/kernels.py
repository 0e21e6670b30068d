"""Operators that sparse arithmetic spends its time on, and that torch has no fast kernel for.

On a GPU they are kernels of a few lines in Triton, which comes with torch (`triton_kernels`); a sum
over the entries of a bag takes a quarter to a sixth of the time of torch's `embedding_bag` there
(`benchmarks/sae_kernels.py`). Where Triton cannot build them, and on the CPU, torch does the same
(`torch_kernels`). All add in one fixed order, so that a result is the same bit for bit each time.

They are operators of torch's, so that traces and compilers see them whole, and know no gradients:
`sparse` says what these are.
"""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from drumline.tasks.sae import torch_kernels

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

MOST_AT_ONCE = 8192
"""Numbers that a program of `largest_of_rows` can look at at once."""


def bag_sum(index: Tensor, table: Tensor, starts: Tensor, weights: Tensor) -> Tensor:
    """For each bag the sum of weight * table[index] over its entries.

    Args:
        index: Rows of the table, int64 [n], bag after bag.
        table: [rows, width].
        starts: Where each bag begins in `index`, int64 [bags], ascending from 0.
        weights: [n], in the table's dtype.

    Returns:
        [bags, width] in the table's dtype; zeros for an empty bag.
    """
    summed: Tensor = torch.ops.drumline.bag_sum(index, table, starts, weights)
    return summed


def bag_products(
    sums: Tensor, bags: Tensor, index: Tensor, table: Tensor, starts: Tensor
) -> Tensor:
    """For each entry the product of its bag's row of `sums` with its own row of the table: what
    the gradient of `bag_sum` is for the weights.

    Args:
        sums: [bags, width].
        bags: The bag of each entry, int64 [n].
        index, table, starts: As for `bag_sum`.

    Returns:
        [n] in the table's dtype.
    """
    products: Tensor = torch.ops.drumline.bag_products(sums, bags, index, table, starts)
    return products


def normalise_rows(rows: Tensor) -> None:
    """Bring every row of [rows, width] to unit norm, in place."""
    torch.ops.drumline.normalise_rows(rows)


def drop_parallel(change: Tensor, rows: Tensor) -> None:
    """Take from each row of `change` the part along the same row of `rows`, in place; both are
    [rows, width].
    """
    torch.ops.drumline.drop_parallel(change, rows)


def largest_of_rows(rows: Tensor, count: int, size: int) -> Tensor:
    """Where the `count` largest of each row of [n, width] stand, int64 [n, count], ascending.

    Args:
        rows: Not float64.
        count: How many are wanted, at most `MOST_AT_ONCE / size`.
        size: Numbers in a bin; see `largest`. It divides the width, into at least `count` and at
            most `MOST_AT_ONCE` bins.
    """
    places: Tensor = torch.ops.drumline.largest_of_rows(rows, count, size)
    return places


@cache
def built_kernels(device: torch.device) -> ModuleType | None:
    """The kernels, if they can be built and run on a GPU; if not, a warning says why, once."""
    try:
        from drumline.tasks.sae import triton_kernels as kernels

        index = torch.tensor([1, 0, 1], device=device)
        starts = torch.tensor([0, 1], device=device)
        weights = torch.tensor([1.0, 2.0, 3.0], device=device)
        table = torch.tensor([[1.0, 10.0], [2.0, 20.0]], device=device)
        found = kernels.bag_sum(index, table, starts, weights).tolist()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a compiler, a driver or Triton itself: torch can do without
        reason = f"{type(error).__name__}: {error}"
    else:
        if found == [[2.0, 20.0], [8.0, 80.0]]:
            return kernels
        reason = f"their result is wrong: {found}"
    warnings.warn(
        f"Sparse sums are left to torch's operators, which take several times as long: Triton's "
        f"kernels cannot be used on {device} ({reason}).",
        stacklevel=2,
    )
    return None


def _define(name: str, signature: str, shaped: Callable[..., Tensor | None]) -> None:
    """An operator that is done with torch on the CPU, and on a GPU where its kernel is missing or
    a tensor has gaps; `shaped` gives its result without values.
    """
    with_torch = getattr(torch_kernels, name)

    def on_gpu(*arguments: Any) -> Any:
        device = arguments[0].device
        kernels = built_kernels(device)
        tensors = (argument for argument in arguments if isinstance(argument, Tensor))
        if kernels is None or not all(tensor.is_contiguous() for tensor in tensors):
            return with_torch(*arguments)
        here = device.index == torch.cuda.current_device()
        with nullcontext() if here else torch.cuda.device(device):
            return getattr(kernels, name)(*arguments)

    qualified = f"drumline::{name}"
    torch.library.define(qualified, signature, tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.impl(qualified, "cpu", with_torch)
    torch.library.impl(qualified, "cuda", on_gpu)
    torch.library.register_fake(qualified, shaped)


def _sum_like(index: Tensor, table: Tensor, starts: Tensor, weights: Tensor) -> Tensor:
    del index, weights
    return table.new_empty(starts.shape[0], table.shape[1])


def _products_like(
    sums: Tensor, bags: Tensor, index: Tensor, table: Tensor, starts: Tensor
) -> Tensor:
    del sums, bags, starts
    return table.new_empty(index.shape[0])


def _places_like(rows: Tensor, count: int, size: int) -> Tensor:
    del size
    return rows.new_empty(rows.shape[0], count, dtype=torch.int64)


def _nothing(*tensors: Tensor) -> None:
    del tensors


_define(
    "bag_sum", "(Tensor index, Tensor table, Tensor starts, Tensor weights) -> Tensor", _sum_like
)
_define(
    "bag_products",
    "(Tensor sums, Tensor bags, Tensor index, Tensor table, Tensor starts) -> Tensor",
    _products_like,
)
_define("largest_of_rows", "(Tensor rows, SymInt count, SymInt size) -> Tensor", _places_like)
_define("normalise_rows", "(Tensor(a!) rows) -> ()", _nothing)
_define("drop_parallel", "(Tensor(a!) change, Tensor rows) -> ()", _nothing)
