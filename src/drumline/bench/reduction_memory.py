"""What CUDA's reductions take for themselves: sums over long, slow dimensions are split up.

A reduction whose outputs are too few to keep the card busy splits each over several thread blocks,
which leave their parts in global memory (aten/src/ATen/native/cuda/Reduce.cuh). The bias gradient
of a linear layer is one: the scratch can be as large as what is summed. How far it is split depends
on the card's multiprocessors; a card with fewer takes less.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

MULTIPROCESSORS = 132
"""Of an H100 SXM; assumed for every card, since a trace is made for none."""

_RESIDENT_THREADS = 2048
_THREADS = 512
_WARP = 32
_VECTOR = 4
_LEAST_EACH, _MOST_EACH = 16, 256


@dataclass
class _Split:
    """How the inputs of an output and the outputs are dealt to threads; see `ReduceConfig`."""

    inputs: int
    outputs: int
    vector: int
    input_step: int = 1
    output_step: int = 1

    @property
    def each(self) -> int:
        """Inputs that one thread takes."""
        return -(-self.inputs // self.input_step)

    @property
    def grid(self) -> int:
        """Thread blocks, before an output is split over several."""
        return -(-(self.outputs // self.vector) // self.output_step)


def scratch_bytes(
    shape: Sequence[int], strides: Sequence[int], reduced: Collection[int], element: int
) -> int:
    """Global memory of one reduction.

    Args:
        shape: Of what is reduced.
        strides: Its strides, in elements.
        reduced: The dimensions that are reduced.
        element: Bytes of what is accumulated.
    """
    kept = [dim for dim in range(len(shape)) if dim not in reduced and shape[dim] > 1]
    gone = [dim for dim in reduced if shape[dim] > 1]
    if not gone or 0 in shape:
        return 0
    inputs, outputs = _product(shape, gone), _product(shape, kept)
    fast_kept = min(kept, key=lambda dim: strides[dim], default=None)
    fast_gone = min(gone, key=lambda dim: strides[dim])
    along = fast_kept is None or strides[fast_gone] < strides[fast_kept]
    vector = 1
    if not along and fast_kept is not None and strides[fast_kept] == 1:
        vector = _vector(shape, strides, fast_kept)
    width, height = _block(*((inputs, outputs) if along else (outputs // vector, inputs)), vector)
    split = _Split(inputs, outputs, vector)
    if along:
        split.input_step *= width
    else:
        split.output_step *= width
    if split.each < min(height * 16, _MOST_EACH):
        return 0
    split.input_step *= height
    blocks = _blocks_for_each(split, width * height)
    if blocks <= 1:
        return 0
    return element * outputs * blocks * (1 if along else width * vector)


def _blocks_for_each(split: _Split, threads: int) -> int:
    """Thread blocks among which the inputs of an output are split."""
    target = MULTIPROCESSORS * (_RESIDENT_THREADS // threads)
    if split.each < _MOST_EACH or split.grid > target:
        return 1
    busy = -(-target // split.grid)
    return max(min(busy, -(-split.each // _LEAST_EACH)), -(-split.each // _MOST_EACH))


def _block(first: int, second: int, vector: int) -> tuple[int, int]:
    """Width and height of a thread block for two dimensions of work."""
    most = _THREADS // vector
    wide, high = (1 << min(n, most).bit_length() - 1 for n in (max(1, first), max(1, second)))
    width = min(wide, _WARP)
    height = min(high, most // width)
    return min(wide, most // height), height


def _vector(shape: Sequence[int], strides: Sequence[int], fastest: int) -> int:
    """Outputs that one load covers."""
    vector = _VECTOR
    others = [strides[dim] for dim in range(len(shape)) if dim != fastest and shape[dim] > 1]
    for number in (shape[fastest], *others):
        while number % vector:
            vector //= 2
    return vector


def _product(shape: Sequence[int], dims: Sequence[int]) -> int:
    found = 1
    for dim in dims:
        found *= shape[dim]
    return found
