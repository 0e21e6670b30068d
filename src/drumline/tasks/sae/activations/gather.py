"""Copying rows from memory maps to their places, piece by piece and several at once.

A row at a random place costs a walk through page tables and a wait for memory, in which a core has
nothing to do: so threads help long before memory's own rate is reached. numpy releases the
interpreter while it copies. Whether a piece is finite is looked at while it is still in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

PIECE_BYTES = 2**19
"""Rows copied at once by one thread: they stay in a core's cache, and outweigh the call."""
MOST_THREADS = 16
"""More than this many only get into the way of what else a rank's cores do."""

Rows = NDArray[Any]
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Piece:
    """Some rows of one block.

    Attributes:
        block: Which block.
        rows: Their numbers within the block.
        places: Where they go.
    """

    block: int
    rows: Numbers
    places: slice | Numbers


class Gatherer:
    """Copies rows, in threads of its own where it may; they are started when first needed."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def copy(
        self,
        pieces: Sequence[Piece],
        block: Callable[[int], Rows],
        rows: Rows,
        exponent: int,
        threads: int,
    ) -> bool:
        """Copy every piece to its places in `rows`.

        Args:
            pieces: What to copy. All numbers are within their blocks.
            block: The rows of a block, [n, width].
            rows: Where to, [all, width].
            exponent: The bits of the rows' floating-point type that are all set in what is not
                finite, and only there.
            threads: How many cores there are for it. With one no thread is started, as must be
                in a process that was forked.

        Returns:
            Whether all rows are finite.
        """
        maps = {piece.block: block(piece.block) for piece in pieces}

        def one(piece: Piece) -> bool:
            return _is_finite(_copy(piece, maps[piece.block], rows), exponent)

        if threads < 2 or len(pieces) < 2:
            found = list(map(one, pieces))
            return all(found)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(min(threads, MOST_THREADS), "gather")
        found = list(self._pool.map(one, pieces))
        return all(found)


def cut(asked: Numbers, ends: Numbers, row_bytes: int) -> Iterator[Piece]:
    """Cut the rows asked for into pieces: in their own order if one block holds them all, and
    otherwise block by block, in the order they lie on disk.

    Args:
        asked: Numbers of rows.
        ends: For each block, the number after its last row.
        row_bytes: Size of a row.
    """
    few = max(1, PIECE_BYTES // row_bytes)
    if not asked.size:
        return
    owners = np.searchsorted(ends, asked, side="right")
    if owners.min() == owners.max():
        block = int(owners[0])
        local = asked - _first(ends, block)
        for start in range(0, asked.size, few):
            yield Piece(block, local[start : start + few], slice(start, start + few))
        return
    order = np.argsort(asked, kind="stable")
    blocks, starts = np.unique(owners[order], return_index=True)
    for block, places in zip(blocks.tolist(), np.split(order, starts[1:]), strict=True):
        for start in range(0, places.size, few):
            some = places[start : start + few]
            yield Piece(block, asked[some] - _first(ends, block), some)


def _first(ends: Numbers, block: int) -> int:
    return int(ends[block - 1]) if block else 0


def _copy(piece: Piece, block: Rows, rows: Rows) -> Rows:
    """Every number is within the block: "clip" only spares numpy a copy of what it takes."""
    if isinstance(piece.places, slice):
        return np.take(block, piece.rows, axis=0, out=rows[piece.places], mode="clip")
    taken = np.take(block, piece.rows, axis=0, mode="clip")
    rows[piece.places] = taken
    return taken


def _is_finite(rows: Rows, exponent: int) -> bool:
    bits = rows.view(f"i{rows.itemsize}")
    return bool(np.bitwise_and(bits, exponent).max(initial=0) != exponent)
