"""Arithmetic on the few latents a TopK keeps, in plain torch and exact for autograd.

With k of F latents active, a dense decoder and a dense encoder gradient spend F/k times the work
they need: on one CPU core, 1024 samples, d 576, F 2304, k 32, 28 ms dense against 1.3 ms for the
decoder, and 27 ms against 2.6 ms for a weight's gradient. Every sum over kept entries runs over a
sorted list, one result in one thread, so it adds in the same order each time, on a GPU too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from drumline.tasks.sae.kernels import bag_products, bag_sum


class Places(NamedTuple):
    """Where the kept entries of a [samples, latents] matrix stand, in reading order.

    Attributes:
        rows: int64 [n], ascending.
        columns: int64 [n], ascending within a row.
        row_starts: int64 [samples], where each row begins.
        by_column: int64 [n], the entries' numbers column by column.
        column_starts: int64 [latents], where each column begins in `by_column`.
        rows_by_column: int64 [n], `rows` in the order of `by_column`.
    """

    rows: Tensor
    columns: Tensor
    row_starts: Tensor
    by_column: Tensor
    column_starts: Tensor
    rows_by_column: Tensor

    @property
    def samples(self) -> int:
        """Rows of the matrix."""
        return len(self.row_starts)

    @classmethod
    def from_flat(cls, flat: Tensor, samples: int, latents: int) -> Places:
        """From ascending positions in the flattened matrix, int64 [n]."""
        rows = torch.div(flat, latents, rounding_mode="floor")
        columns = flat - rows * latents
        return cls._sorted(rows, columns, _starts(rows, samples), latents)

    @classmethod
    def from_columns(cls, columns: Tensor, latents: int) -> Places:
        """From the columns kept in each row, int64 [samples, k], ascending."""
        samples, k = columns.shape
        entries = torch.arange(samples * k, device=columns.device)
        rows = torch.div(entries, k, rounding_mode="floor")
        return cls._sorted(rows, columns.reshape(-1), entries[::k].contiguous(), latents)

    @classmethod
    def _sorted(cls, rows: Tensor, columns: Tensor, row_starts: Tensor, latents: int) -> Places:
        ordered, by_column = torch.sort(columns, stable=True)
        column_starts = _starts(ordered, latents)
        return cls(rows, columns, row_starts, by_column, column_starts, rows[by_column])


def values_at(
    inputs: Tensor,
    encoder: tuple[Tensor, Tensor],
    found: Tensor,
    at: Places,
    *,
    shift: Tensor | None = None,
) -> Tensor:
    """Entries of `inputs @ weight.T + bias` at some places, with their gradients.

    Args:
        inputs: What the encoder sees, [samples, width], taken as it is: it gets no gradient.
        encoder: Weight [latents, width] and bias [latents].
        found: [n], the entries themselves, taken from a product made without gradient.
        at: Their places.
        shift: What was taken from every sample to give `inputs`, [width]. Its gradient needs no
            sum over samples: it is the bias's gradient, sent back through the weight.

    Returns:
        [n] in the dtype of the weight.
    """
    weight, bias = encoder
    values: Tensor = _ValuesAt.apply(weight, bias, shift, (inputs.detach(), found, at))  # type: ignore[no-untyped-call]
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
    ranges, bags, starts = max(1, len(ends)), at.rows, at.row_starts
    if ranges > 1:
        bags = at.rows * ranges + sum((at.columns >= end).long() for end in ends[:-1])
        starts = _starts(bags, at.samples * ranges)
    values = values.to(weight.dtype)
    summed: Tensor = _DecodeAt.apply(values, weight, (bags, starts, at))  # type: ignore[no-untyped-call]
    return summed.view(at.samples, ranges, -1).transpose(0, 1)


class _ValuesAt(torch.autograd.Function):
    """The gradient of a linear map of which only some outputs are used."""

    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        _bias: Tensor,
        _shift: Tensor | None,
        kept: tuple[Tensor, Tensor, Places],
    ) -> Tensor:
        inputs, found, at = kept
        ctx.save_for_backward(inputs, weight)
        ctx.at = at
        return found.to(weight.dtype, copy=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        at: Places = ctx.at
        grad = grad[at.by_column]
        ones = grad.new_ones(at.samples, 1)
        for_weight = bag_sum(at.rows_by_column, inputs, at.column_starts, grad)
        for_bias = bag_sum(at.rows_by_column, ones, at.column_starts, grad).squeeze(1)
        for_shift = -(for_bias @ weight) if ctx.needs_input_grad[2] else None
        return for_weight, for_bias, for_shift, None


class _DecodeAt(torch.autograd.Function):
    """Weighted sums of rows, bag by bag, with the gradients of the weighting and of the rows."""

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, weight: Tensor, kept: tuple[Tensor, Tensor, Places]
    ) -> Tensor:
        _, starts, at = kept
        ctx.save_for_backward(values, weight)
        ctx.kept = kept
        return bag_sum(at.columns, weight, starts, values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        values, weight = ctx.saved_tensors
        bags, starts, at = ctx.kept
        grad = grad.contiguous()
        for_values = bag_products(grad, bags, at.columns, weight, starts)
        bags = at.rows_by_column if bags is at.rows else bags[at.by_column]
        for_weight = bag_sum(bags, grad, at.column_starts, values[at.by_column])
        return for_values, for_weight, None


def _starts(ascending: Tensor, count: int) -> Tensor:
    """Where each of the numbers 0..count-1 begins in an ascending list, int64 [count]."""
    return torch.searchsorted(ascending, torch.arange(count, device=ascending.device))
