"""Rows of activations by number, whatever the format they are stored in."""

from __future__ import annotations

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
    """

    def __init__(self, path: Path, found: Found) -> None:
        self.path = path
        self.format = found.format
        self.facts = found.facts
        self._blocks = found.blocks
        self.width = found.blocks[0].width
        self.dtype_name = found.blocks[0].dtype
        self._ends = np.cumsum([block.rows for block in found.blocks])
        self._rows: dict[int, NDArray[Any]] = {}

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
        rows = torch.from_numpy(self._gather(asked))
        if self.dtype_name == "bfloat16":
            rows = rows.view(torch.bfloat16)
        # A sum shows any bad row cheaply; only then is each row looked at.
        if asked.size and not bool(rows.sum(dtype=torch.float32).isfinite()):
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

    def _gather(self, asked: NDArray[np.int64]) -> NDArray[Any]:
        """Copy rows out of the maps in the order they lie on disk, into the order asked for."""
        gathered = np.empty((asked.size, self.width), NUMPY_TYPES[self.dtype_name])
        order = np.argsort(asked, kind="stable")
        ordered = asked[order]
        owners = np.searchsorted(self._ends, ordered, side="right")
        for number in np.unique(owners):
            low, high = np.searchsorted(owners, [number, number + 1])
            first = self._ends[number] - self._blocks[number].rows
            gathered[order[low:high]] = self._map(int(number))[ordered[low:high] - first]
        return gathered

    def _map(self, number: int) -> NDArray[Any]:
        """The rows of one block as an array over the file."""
        if number not in self._rows:
            self._rows[number] = _open_block(self._blocks[number])
        return self._rows[number]

    def _refuse_non_finite(self, rows: torch.Tensor, asked: NDArray[np.int64]) -> None:
        """Name the first row that is not finite. A sum may overflow where every row is fine."""
        bad = (~rows.isfinite().all(dim=1)).nonzero().flatten().tolist()
        if not bad:
            return
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


def _open_block(block: Block) -> NDArray[Any]:
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
    # A plain array over the map: np.memmap itself makes every slice slow.
    return np.asarray(mapped)
