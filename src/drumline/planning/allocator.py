"""A model of CUDA's caching allocator in torch: from tensors asked for to memory reserved.

It follows the native allocator with its default settings (c10/cuda/CUDACachingAllocator): sizes
are rounded to 512 bytes; blocks of up to 1 MiB come from 2 MiB segments, of up to 10 MiB from
20 MiB segments, larger ones from segments of their own size rounded to 2 MiB; the smallest free
block that is large enough is taken and split; neighbours that are free merge. Each stream has free
blocks of its own, and so has a pool that CUDA graphs were recorded in. No expandable segments, and
as long as memory lasts nothing is given back to the driver unless the cache is emptied.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

ROUNDING = 512
SMALL_REQUEST = 2**20
SMALL_SEGMENT = 2 * 2**20
MEDIUM_REQUEST = 10 * 2**20
MEDIUM_SEGMENT = 20 * 2**20
LARGE_ROUNDING = 2 * 2**20


def rounded(size: int) -> int:
    """What a request of `size` bytes takes."""
    return max(ROUNDING, -(-size // ROUNDING) * ROUNDING)


def segment_size(size: int) -> int:
    """What the driver is asked for when no free block fits a rounded size."""
    if size <= SMALL_REQUEST:
        return SMALL_SEGMENT
    if size < MEDIUM_REQUEST:
        return MEDIUM_SEGMENT
    return -(-size // LARGE_ROUNDING) * LARGE_ROUNDING


@dataclass(eq=False)
class Block:
    """A piece of a segment; `before` and `after` are its neighbours there, and `stream` is the
    number of the stream, or of the graphs' pool, that the segment is of.
    """

    address: int
    size: int
    small: bool
    stream: int = 0
    free: bool = False
    before: Block | None = None
    after: Block | None = None


class CachingAllocator:
    """The allocator's state. `allocated` and `reserved` are bytes now, `*_peak` the most so far."""

    def __init__(self) -> None:
        self.allocated = self.allocated_peak = 0
        self.reserved = self.reserved_peak = 0
        self.segments: list[int] = []
        self._next_address = 0
        self._free: defaultdict[tuple[bool, int], list[tuple[int, int]]] = defaultdict(list)
        self._at: dict[int, Block] = {}

    def allocate(self, size: int, stream: int = 0) -> Block:
        """A block for `size` bytes, asked for on a stream or, by its number, from a pool."""
        size = rounded(size)
        block = self._take(size, stream) or self._new_segment(size, stream)
        if self._splits(block, size):
            self._split(block, size)
        block.free = False
        self.allocated += block.size
        self.allocated_peak = max(self.allocated_peak, self.allocated)
        return block

    def release(self, block: Block) -> None:
        """Give a block back to the cache."""
        self.allocated -= block.size
        block.free = True
        before, after = block.before, block.after
        if before is not None and before.free:
            self._forget(before)
            before.size += block.size
            self._join(before, block.after)
            block = before
        if after is not None and after.free:
            self._forget(after)
            block.size += after.size
            self._join(block, after.after)
        self._offer(block)

    def empty(self, held: Collection[int] = ()) -> None:
        """Give the segments in which nothing is in use back to the driver.

        Args:
            held: Numbers of the pools that graphs are alive in: these give nothing back.
        """
        for (_, stream), free in self._free.items():
            if stream in held:
                continue
            for size, address in list(free):
                block = self._at[address]
                if block.before is None and block.after is None:
                    self._forget(block)
                    self.segments.remove(size)
                    self.reserved -= size

    def _take(self, size: int, stream: int) -> Block | None:
        pool = self._free[size <= SMALL_REQUEST, stream]
        place = bisect_left(pool, (size, -1))
        if place == len(pool):
            return None
        _, address = pool.pop(place)
        return self._at.pop(address)

    def _new_segment(self, size: int, stream: int) -> Block:
        length = segment_size(size)
        self.segments.append(length)
        self.reserved += length
        self.reserved_peak = max(self.reserved_peak, self.reserved)
        block = Block(self._next_address, length, size <= SMALL_REQUEST, stream)
        self._next_address += length
        return block

    @staticmethod
    def _splits(block: Block, size: int) -> bool:
        rest = block.size - size
        return rest >= ROUNDING if block.small else rest > SMALL_REQUEST

    def _split(self, block: Block, size: int) -> None:
        address, left = block.address + size, block.size - size
        rest = Block(address, left, block.small, block.stream, free=True)
        block.size = size
        self._join(rest, block.after)
        self._join(block, rest)
        self._offer(rest)

    @staticmethod
    def _join(first: Block, second: Block | None) -> None:
        first.after = second
        if second is not None:
            second.before = first

    def _offer(self, block: Block) -> None:
        insort(self._free[block.small, block.stream], (block.size, block.address))
        self._at[block.address] = block

    def _forget(self, block: Block) -> None:
        pool = self._free[block.small, block.stream]
        del pool[bisect_left(pool, (block.size, block.address))]
        del self._at[block.address]
