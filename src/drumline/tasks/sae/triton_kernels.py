"""The operators of `kernels` in Triton. Imported on a GPU only; all tensors are contiguous.

Sums are made in float32, of float64 in float64.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 256, 2
"""Columns of a table that a program works on. Bags come first in the launch: while all look at the
same few columns, these stay in the cache."""
ROW_BLOCK, ROW_WARPS = 1024, 4
"""Columns of a row that are worked on at once, where a program has a whole row."""

_BITS = {torch.float32: 32, torch.float16: 19, torch.bfloat16: 16}
"""Upper bits of a float32 that a type uses: sign, exponent, and what it has of the fraction."""


def bag_sum(index: Tensor, table: Tensor, starts: Tensor, weights: Tensor) -> Tensor:
    """See `kernels.bag_sum`."""
    bags, width = starts.shape[0], table.shape[1]
    summed = table.new_empty(bags, width)
    grid = (bags, triton.cdiv(width, BLOCK))
    if bags:
        _bag_sum[grid](
            index, table, starts, weights, summed, index.shape[0], bags, width,
            wide=_wide(table), block=BLOCK, num_warps=WARPS,
        )  # fmt: skip
    return summed


def bag_products(
    sums: Tensor, bags: Tensor, index: Tensor, table: Tensor, starts: Tensor
) -> Tensor:
    """See `kernels.bag_products`: by blocks of columns, which are then added up."""
    del bags
    count, width = starts.shape[0], table.shape[1]
    grid = (count, triton.cdiv(width, BLOCK))
    dtype = torch.float64 if table.dtype is torch.float64 else torch.float32
    parts = table.new_empty(grid[1], index.shape[0], dtype=dtype)
    if count:
        _bag_products[grid](
            sums, index, table, starts, parts, index.shape[0], count, width,
            wide=_wide(table), block=BLOCK, num_warps=WARPS,
        )  # fmt: skip
    return parts.sum(dim=0).to(table.dtype)


def largest_of_rows(rows: Tensor, count: int, size: int) -> Tensor:
    """See `kernels.largest_of_rows`."""
    samples, width = rows.shape
    bins = width // size
    chosen = rows.new_empty(samples, count, dtype=torch.int32)
    places = rows.new_empty(samples, count, dtype=torch.int64)
    bits = _BITS[rows.dtype]
    if samples:
        tile = triton.next_power_of_2(bins)
        _highest_bins[(samples,)](
            rows, chosen, count, width, bins,
            bits=bits, tile=tile, num_warps=_warps(tile),
        )  # fmt: skip
        tile = triton.next_power_of_2(size * count)
        _largest_in_bins[(samples,)](
            rows, chosen, places, count, width, bins, size * count,
            bits=bits, tile=tile, num_warps=_warps(tile),
        )  # fmt: skip
    return places


def normalise_rows(rows: Tensor) -> None:
    """See `kernels.normalise_rows`."""
    if rows.numel():
        _normalise_rows[(rows.shape[0],)](
            rows, rows.shape[1], wide=_wide(rows), block=ROW_BLOCK, num_warps=ROW_WARPS
        )


def drop_parallel(change: Tensor, rows: Tensor) -> None:
    """See `kernels.drop_parallel`."""
    if rows.numel():
        _drop_parallel[(rows.shape[0],)](
            change, rows, rows.shape[1], wide=_wide(rows), block=ROW_BLOCK, num_warps=ROW_WARPS
        )


def _warps(tile: int) -> int:
    """A warp for up to a thousand numbers: within one nobody waits for others."""
    return max(1, min(8, tile // 1024))


def _wide(tensor: Tensor) -> tl.dtype:
    return tl.float64 if tensor.dtype is torch.float64 else tl.float32


@triton.jit
def _entries_of(bag, starts, entries, bags):
    """Where a bag's entries start and stop; those of the last stop at the end."""
    start = tl.load(starts + bag)
    return start, tl.load(starts + bag + 1, mask=bag + 1 < bags, other=entries)


@triton.jit
def _bag_sum(
    index, table, starts, weights, summed, entries, bags, width,
    wide: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """One bag, `block` of its columns."""
    bag = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * block + tl.arange(0, block)
    inside = columns < width
    start, stop = _entries_of(bag, starts, entries, bags)
    total = tl.zeros([block], wide)
    for entry in range(start, stop):
        row = tl.load(index + entry)
        weight = tl.load(weights + entry).to(wide)
        values = tl.load(table + row * width + columns, mask=inside, other=0.0)
        total += weight * values.to(wide)
    tl.store(summed + bag * width + columns, total.to(summed.dtype.element_ty), mask=inside)


@triton.jit
def _bag_products(
    sums, index, table, starts, parts, entries, bags, width,
    wide: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """The entries of one bag, `block` of the columns."""
    bag = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * block + tl.arange(0, block)
    inside = columns < width
    start, stop = _entries_of(bag, starts, entries, bags)
    own = tl.load(sums + bag * width + columns, mask=inside, other=0.0).to(wide)
    part = parts + tl.program_id(1).to(tl.int64) * entries
    for entry in range(start, stop):
        row = tl.load(index + entry)
        values = tl.load(table + row * width + columns, mask=inside, other=0.0)
        tl.store(part + entry, tl.sum(own * values.to(wide), axis=0))


@triton.jit
def _ranks(values, bits: tl.constexpr):
    """Unsigned numbers in the order of floating-point ones, NaN above all; the upper `bits` of 32.

    Of a negative number all bits are turned over, of another the sign alone.
    """
    values = values.to(tl.float32)
    signed = values.to(tl.int32, bitcast=True)
    turned = tl.where(signed < 0, ~signed, signed ^ -0x80000000)
    none = values != values  # noqa: PLR0124 - NaN
    ranks = tl.where(none, -1, turned).to(tl.uint32, bitcast=True)
    return ranks >> (32 - bits)


@triton.jit
def _choose(ranks, inside, count, bits: tl.constexpr):
    """Which of a tile are the `count` with the highest ranks, of equal ones the first.

    The lowest rank among them is found bit by bit: it is the highest that `count` reach.
    """
    least = tl.zeros([1], tl.uint32)
    for step in range(bits):
        wanted = least | (tl.full([1], 1, tl.uint32) << (bits - 1 - step))
        reached = tl.sum((inside & (ranks >= wanted)).to(tl.int32), axis=0)
        least = tl.where(reached >= count, wanted, least)
    above = inside & (ranks > least)
    equal = inside & (ranks == least)
    left = count - tl.sum(above.to(tl.int32), axis=0)
    return above | (equal & (tl.cumsum(equal.to(tl.int32), axis=0) <= left))


@triton.jit
def _highest_bins(
    rows, chosen, count, width, bins, bits: tl.constexpr, tile: tl.constexpr
):  # fmt: skip
    """The bins of one row with the highest maxima, ascending."""
    row = tl.program_id(0).to(tl.int64)
    bin = tl.arange(0, tile)
    inside = bin < bins
    maxima = tl.zeros([tile], tl.uint32)
    for start in range(0, width, bins):
        values = tl.load(rows + row * width + start + bin, mask=inside, other=0.0)
        maxima = tl.maximum(maxima, _ranks(values, bits))
    taken = _choose(maxima, inside, count, bits)
    place = tl.cumsum(taken.to(tl.int32), axis=0) - 1
    tl.store(chosen + row * count + place, bin, mask=taken)


@triton.jit
def _largest_in_bins(
    rows, chosen, places, count, width, bins, left, bits: tl.constexpr, tile: tl.constexpr
):  # fmt: skip
    """Places of the largest of one row among the `left` numbers of its chosen bins, ascending."""
    row = tl.program_id(0).to(tl.int64)
    number = tl.arange(0, tile)
    inside = number < left
    depth = number // count
    bin = tl.load(chosen + row * count + number - depth * count, mask=inside, other=0)
    column = depth * bins + bin
    values = tl.load(rows + row * width + column, mask=inside, other=0.0)
    taken = _choose(_ranks(values, bits), inside, count, bits)
    place = tl.cumsum(taken.to(tl.int32), axis=0) - 1
    tl.store(places + row * count + place, column.to(tl.int64), mask=taken)


@triton.jit
def _normalise_rows(rows, width, wide: tl.constexpr, block: tl.constexpr):
    """One row."""
    first = rows + tl.program_id(0).to(tl.int64) * width
    squares = tl.zeros([block], wide)
    for column in range(0, width, block):
        columns = column + tl.arange(0, block)
        values = tl.load(first + columns, mask=columns < width, other=0.0).to(wide)
        squares += values * values
    norm = tl.maximum(tl.sqrt(tl.sum(squares, axis=0)), 1e-12)
    for column in range(0, width, block):
        columns = column + tl.arange(0, block)
        values = tl.load(first + columns, mask=columns < width, other=0.0).to(wide)
        tl.store(first + columns, (values / norm).to(rows.dtype.element_ty), mask=columns < width)


@triton.jit
def _drop_parallel(change, rows, width, wide: tl.constexpr, block: tl.constexpr):
    """One row."""
    start = tl.program_id(0).to(tl.int64) * width
    products, squares = tl.zeros([block], wide), tl.zeros([block], wide)
    for column in range(0, width, block):
        columns = column + tl.arange(0, block)
        values = tl.load(rows + start + columns, mask=columns < width, other=0.0).to(wide)
        moved = tl.load(change + start + columns, mask=columns < width, other=0.0).to(wide)
        products += values * moved
        squares += values * values
    length = tl.maximum(tl.sqrt(tl.sum(squares, axis=0)), 1e-12)
    part = tl.sum(products, axis=0) / (length * length)
    for column in range(0, width, block):
        columns = column + tl.arange(0, block)
        values = tl.load(rows + start + columns, mask=columns < width, other=0.0).to(wide)
        moved = tl.load(change + start + columns, mask=columns < width, other=0.0).to(wide)
        kept = (moved - part * values).to(change.dtype.element_ty)
        tl.store(change + start + columns, kept, mask=columns < width)
