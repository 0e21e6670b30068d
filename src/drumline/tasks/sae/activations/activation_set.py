"""Rows of activations by number, whatever the format they are stored in."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from drumline.errors import DataError
from drumline.tasks.sae.activations.block import NUMPY_TYPES, Block, Found
from drumline.tasks.sae.activations.detect import find_activations

if TYPE_CHECKING:
    import torch


def open_activations(path: Path, *, name: str | None = None, verify: bool = False) -> ActivationSet:
    """Open a set of activations; the format is told by what is at `path`.

    Args:
        path: A file or folder in one of the formats of docs/activations.md.
        name: Which tensor (safetensors) or column (Hugging Face datasets) to read, where there
            are several.
        verify: Compare every shard of an extracted set with its checksum; reads all of it once.

    Raises:
        DataError: If there is nothing usable there; the message names the file.
    """
    return ActivationSet(path, find_activations(path, name=name, verify=verify))


class ActivationSet:
    """All rows of a set, read through memory maps.

    Can be pickled: maps are opened in the process that reads. No row is checked until it is
    fetched; a fetched row is.

    Attributes:
        pinned: Whether rows are read into page-locked memory, which a GPU copies by itself. In a
            loader's worker process it does not count: there the GPU is out of reach.
    """

    def __init__(self, path: Path, found: Found) -> None:
        self.path = path
        self.format = found.format
        self.facts = found.facts
        self._blocks = found.blocks
        self.width = found.blocks[0].width
        self.dtype_name = found.blocks[0].dtype
        self._ends = np.cumsum([block.rows for block in found.blocks])
        self._rows: dict[int, torch.Tensor] = {}
        self.pinned = False

    @property
    def dtype(self) -> torch.dtype:
        """The type rows are stored and given in."""
        import torch

        dtype: torch.dtype = getattr(torch, self.dtype_name)
        return dtype

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, number: int) -> torch.Tensor:
        """One row, [width]."""
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> torch.Tensor:
        """Rows in the order asked for, [n, width] in the stored type.

        Raises:
            IndexError: If a number is not within 0..len-1.
            DataError: If a row holds NaN or infinity; names the file and the row within it.
        """
        import torch

        asked = np.asarray(numbers, dtype=np.int64).reshape(-1)
        if asked.size and not 0 <= asked.min() <= asked.max() < len(self):
            raise IndexError(f"rows {asked.min()}..{asked.max()} are not within 0..{len(self) - 1}")
        rows = self._empty(asked.size)
        stored = rows.view(torch.int16) if self.dtype_name == "bfloat16" else rows
        if asked.size:
            self._gather(asked, stored)
            least, most = torch.aminmax(rows)
            if not bool(least.isfinite() & most.isfinite()):
                self._refuse_non_finite(rows, asked)
        return rows

    def describe(self) -> dict[str, Any]:
        """What the set is, as plain data."""
        return {
            "path": str(self.path),
            "format": self.format,
            "width": self.width,
            "dtype": self.dtype_name,
            "count": len(self),
            "files": len({block.file for block in self._blocks}),
            **self.facts,
        }

    def _empty(self, count: int) -> torch.Tensor:
        """Memory for rows. torch keeps page-locked memory and gives it again, so that it is not
        asked from the system for each batch; numpy asks for large pages where it can.
        """
        import torch
        from torch.utils.data import get_worker_info

        shape = (count, self.width)
        if self.pinned and get_worker_info() is None:
            return torch.empty(shape, dtype=self.dtype, pin_memory=True)
        rows = torch.from_numpy(np.empty(shape, NUMPY_TYPES[self.dtype_name]))
        return rows.view(self.dtype)

    def _gather(self, asked: NDArray[np.int64], rows: torch.Tensor) -> None:
        """Copy rows out of the maps to their places, block by block if several hold them.

        By few calls that each copy much: torch uses all cores in one, and a thread that reads
        ahead has to wait for the interpreter after each.
        """
        import torch

        owners = np.searchsorted(self._ends, asked, side="right")
        if owners.min() == owners.max():
            number = int(owners[0])
            local = torch.from_numpy(asked - self._first(number))
            torch.index_select(self._map(number), 0, local, out=rows)
            return
        order = np.argsort(asked, kind="stable")
        numbers, starts = np.unique(owners[order], return_index=True)
        for number, places in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
            local = torch.from_numpy(asked[places] - self._first(number))
            taken = torch.index_select(self._map(number), 0, local)
            rows.index_copy_(0, torch.from_numpy(places), taken)

    def _first(self, number: int) -> int:
        """Which row of the set the first of a block is."""
        return int(self._ends[number]) - self._blocks[number].rows

    def _map(self, number: int) -> torch.Tensor:
        """The rows of one block, mapped from the file; bfloat16 as int16."""
        if number not in self._rows:
            self._rows[number] = _open_block(self._blocks[number])
        return self._rows[number]

    def _refuse_non_finite(self, rows: torch.Tensor, asked: NDArray[np.int64]) -> None:
        """Name the first row that is not finite."""
        bad = (~rows.isfinite().all(dim=1)).nonzero().flatten().tolist()
        number = int(asked[bad].min())
        owner = int(np.searchsorted(self._ends, number, side="right"))
        block = self._blocks[owner]
        row = number - int(self._ends[owner]) + block.rows + block.first_row
        raise DataError(
            f"Row {row} of {block.file} holds NaN or infinity (row {number} of the set).",
            remedy="Extract or write that file again without such rows.",
            file=str(block.file),
            row=row,
            number=number,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rows": {}}


def _open_block(block: Block) -> torch.Tensor:
    import torch

    try:
        mapped = np.memmap(
            block.file,
            NUMPY_TYPES[block.dtype],
            mode="r",
            offset=block.offset_bytes,
            shape=(block.rows, block.width),
        )
    except (OSError, ValueError) as error:
        raise DataError(
            f"{block.file} cannot be read any more: {error}.",
            remedy="It was there when the set was opened; do not change a set in use.",
            file=str(block.file),
        ) from None
    with warnings.catch_warnings():  # torch warns of memory that is not to be written
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(np.asarray(mapped))
