"""Sequences cut at episodes: where, and into which pieces that a fused LSTM can take at once.

A piece is a part of one sequence within one episode. On a GPU all pieces go in one packed call. On
the CPU, where packed calls are slow, pieces of about one length stand side by side in a bucket,
filled up to the longest.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

from drumline.distributed.kind import is_gpu

BUCKET_ROWS = 64
"""Pieces side by side at most: more are no faster, and their steps leave the CPU's caches."""
STEP_ROWS = 2
"""A fused step takes as long as so many rows even without any: it reads the weights."""
CALL_ROWS = 48
"""Rows that one step could do in the time that a fused call takes to begin and end."""
COPYING = 1.05
"""What bringing pieces side by side and back adds. These four are read from the table of
benchmarks/sequence_ways.py; results do not depend on them."""


@dataclass(frozen=True)
class Pieces:
    """Sequences [L, n] cut each for itself into pieces within one episode, longest first.

    Attributes:
        order: int64 [L * n], places in the flat sequences, in the order of a packed sequence: all
            first steps of pieces, longest piece first, then all second steps, ...
        batch_sizes: int64 [longest], on the CPU: pieces that have a step so far in.
        sizes: int64 [pieces], steps of each.
        firsts: int64 [pieces], the step of the sequence that each begins at.
        rows: int64 [pieces], the sequence each is of.
        carried: bool [pieces], whether a piece goes on from the sequence's initial state.
    """

    order: Tensor
    batch_sizes: Tensor
    sizes: Tensor
    firsts: Tensor
    rows: Tensor
    carried: Tensor


@dataclass(frozen=True)
class Bucket:
    """Pieces begin..end-1 side by side, filled up to `length` steps."""

    begin: int
    end: int
    length: int


@dataclass(frozen=True)
class Cuts:
    """Where sequences are cut, and how a fused LSTM goes about it.

    Attributes:
        steps: Steps, in ascending order, at which an episode begins in any sequence.
        pieces: None where all sequences are cut together at `steps`.
        buckets: Of the pieces; empty for one packed call.
    """

    steps: tuple[int, ...]
    pieces: Pieces | None = None
    buckets: tuple[Bucket, ...] = ()


def find_cuts(starts: Tensor) -> Cuts:
    """Look where episodes begin, and choose. Waits for the device.

    Args:
        starts: bool [L, n], whether a step is the first of an episode. Without values, where a step
            is only traced, nothing is cut; on a GPU an episode may begin at any step, and into how
            many pieces that cuts is the trace's to say.
    """
    if isinstance(starts, FakeTensor):
        gpu = is_gpu(starts.device)
        return Cuts(tuple(range(len(starts))), find_pieces(starts)) if gpu else Cuts(())
    steps = tuple(starts.any(dim=1).nonzero().flatten().tolist())
    if not any(steps):  # none, or at the first step only
        return Cuts(steps)
    pieces = find_pieces(starts)
    if is_gpu(starts.device):
        return Cuts(steps, pieces)
    buckets = find_buckets(pieces.sizes.tolist())
    together = len(starts) * (STEP_ROWS + starts.size(1)) + CALL_ROWS * (len(steps) + 1)
    if together <= COPYING * sum(map(_cost, buckets)):
        return Cuts(steps)
    return Cuts(steps, pieces, buckets)


def find_pieces(starts: Tensor) -> Pieces:
    """Cut every sequence wherever one of its episodes begins.

    Args:
        starts: bool [L, n], whether a step is the first of an episode.
    """
    begins = starts.clone()
    begins[0] = True
    steps = torch.arange(len(starts), device=starts.device).unsqueeze(1)
    since = steps - torch.where(begins, steps, 0).cummax(dim=0).values
    piece = begins.t().reshape(-1).cumsum(0).sub(1).view(starts.size(1), -1).t()
    sizes, rows, firsts, batch_sizes = _counted(begins, piece, since)
    by_size = sizes.argsort(descending=True, stable=True)
    rank = torch.empty_like(by_size)
    rank[by_size] = torch.arange(len(by_size), device=starts.device)
    rows, firsts = rows[by_size], firsts[by_size]
    return Pieces(
        order=(since * len(sizes) + rank[piece]).reshape(-1).argsort(),
        batch_sizes=batch_sizes,
        sizes=sizes[by_size],
        firsts=firsts,
        rows=rows,
        carried=(firsts == 0) & ~starts[0, rows],
    )


def _counted(begins: Tensor, piece: Tensor, since: Tensor) -> tuple[Tensor, ...]:
    """Sizes of the pieces, the rows and steps they begin at, and how many have a step so far in, on
    the CPU. Where there are no values, a piece of each sequence and what a trace selects besides.
    """
    rows, firsts = begins.t().nonzero(as_tuple=True)
    if isinstance(begins, FakeTensor):
        more = rows.new_zeros(begins.size(1))
        rows, firsts = torch.cat([rows, more]), torch.cat([firsts, more])
        return torch.empty_like(rows), rows, firsts, torch.empty(len(begins), dtype=torch.int64)
    return torch.bincount(piece.reshape(-1)), rows, firsts, torch.bincount(since.reshape(-1)).cpu()


def find_buckets(sizes: list[int]) -> tuple[Bucket, ...]:
    """Pieces side by side, so that it costs about least.

    A bucket is closed when it is full, or when what the next pieces would be filled up by costs
    more than beginning another.

    Args:
        sizes: Steps of the pieces, longest first.
    """
    found, begin, filled = [], 0, 0
    for place, size in enumerate(sizes):
        longest = sizes[begin]
        filled += longest - size
        if place - begin == BUCKET_ROWS or filled > size * STEP_ROWS + CALL_ROWS:
            found.append(Bucket(begin, place, longest))
            begin, filled = place, 0
    return (*found, Bucket(begin, len(sizes), sizes[begin]))


def places_in(bucket: Bucket, pieces: Pieces, length: int, count: int) -> Tensor:
    """Where the steps of a bucket's pieces stand in flat sequences [length * count].

    Returns:
        int64 [bucket.length, pieces]; length * count for the steps that a piece is filled up by.
    """
    these = slice(bucket.begin, bucket.end)
    steps = torch.arange(bucket.length, device=pieces.firsts.device).unsqueeze(1)
    places = (pieces.firsts[these] + steps) * count + pieces.rows[these]
    return torch.where(steps < pieces.sizes[these], places, length * count)


def _cost(bucket: Bucket) -> int:
    """Steps of rows that could be done in its time."""
    return bucket.length * (STEP_ROWS + bucket.end - bucket.begin) + CALL_ROWS
