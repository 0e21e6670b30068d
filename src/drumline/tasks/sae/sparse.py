"""Arithmetic on the few latents a TopK keeps, in plain torch and exact for autograd.

With k of F latents active, a dense decoder and a dense encoder gradient spend F/k times the work
they need: on one CPU core, 1024 samples, d 576, F 2304, k 32, 28 ms dense against 1.3 ms for the
decoder, and 27 ms against 2.6 ms for the encoder's gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


class Places(NamedTuple):
    """Where the kept entries of a [samples, latents] matrix stand, in reading order.

    Attributes:
        rows: int64 [n], ascending.
        columns: int64 [n], ascending within a row.
        samples: Rows of the matrix.
        latents: Columns of the matrix.
    """

    rows: Tensor
    columns: Tensor
    samples: int
    latents: int

    @classmethod
    def from_flat(cls, flat: Tensor, samples: int, latents: int) -> Places:
        """From ascending positions in the flattened matrix, int64 [n]."""
        rows = torch.div(flat, latents, rounding_mode="floor")
        return cls(rows, flat - rows * latents, samples, latents)


def values_at(inputs: Tensor, weight: Tensor, bias: Tensor, found: Tensor, at: Places) -> Tensor:
    """Entries of `inputs @ weight.T + bias` at some places, with their gradients.

    Args:
        inputs: [samples, width].
        weight: [latents, width].
        bias: [latents].
        found: [n], the entries themselves, taken from a product made without gradient.
        at: Their places.

    Returns:
        [n] in the dtype of `weight`.
    """
    values: Tensor = _ValuesAt.apply(inputs, weight, bias, (found, at))  # type: ignore[no-untyped-call]
    return values


def decode_at(values: Tensor, weight: Tensor, at: Places, ends: Sequence[int] = ()) -> Tensor:
    """Rows of `weight` [latents, width] weighted by `values` [n] and added up for each sample.

    Args:
        values: Values of the latents, [n].
        weight: Decoder, [latents, width].
        at: Places of the values.
        ends: Ascending ends of ranges of latents; by default one range of all.

    Returns:
        [ranges, samples, width]: what each range adds to each sample.
    """
    ends = ends or (at.latents,)
    bags = at.rows
    if len(ends) > 1:
        edges = torch.tensor(ends, device=at.columns.device)
        bags = at.rows * len(ends) + torch.bucketize(at.columns, edges, right=True)
    count = at.samples * len(ends)
    starts = _starts(bags, count)
    added = F.embedding_bag(
        at.columns, weight, starts, per_sample_weights=values.to(weight.dtype), mode="sum"
    )
    return added.view(at.samples, len(ends), -1).transpose(0, 1)


class _ValuesAt(torch.autograd.Function):
    """The gradient of a linear map of which only some outputs are used."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, _bias: Tensor, kept: tuple[Tensor, Places]
    ) -> Tensor:
        found, at = kept
        ctx.save_for_backward(inputs, weight, at.rows, at.columns)
        ctx.size = (at.samples, at.latents)
        return found.to(weight.dtype, copy=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight, rows, columns = ctx.saved_tensors
        samples, latents = ctx.size
        for_inputs = for_weight = for_bias = None
        if ctx.needs_input_grad[0]:
            for_inputs = _bag_sum(columns, weight, _starts(rows, samples), grad)
        if ctx.needs_input_grad[1]:
            order = torch.argsort(columns, stable=True)
            for_weight = _bag_sum(
                rows[order], inputs, _starts(columns[order], latents), grad[order]
            )
        if ctx.needs_input_grad[2]:
            for_bias = _column_sums(columns, grad, latents)
        return for_inputs, for_weight, for_bias, None


def _bag_sum(index: Tensor, table: Tensor, starts: Tensor, weights: Tensor) -> Tensor:
    return F.embedding_bag(index, table, starts, per_sample_weights=weights, mode="sum")


def _starts(ascending: Tensor, count: int) -> Tensor:
    """Where each of the numbers 0..count-1 begins in an ascending list, int64 [count]."""
    return torch.searchsorted(ascending, torch.arange(count, device=ascending.device))


def _column_sums(columns: Tensor, values: Tensor, latents: int) -> Tensor:
    return values.new_zeros(latents).index_add_(0, columns, values)
