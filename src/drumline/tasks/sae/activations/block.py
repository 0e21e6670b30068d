"""A block: consecutive rows of activations at one place of one file.

Every format comes down to this. A safetensors tensor, the body of a .npy file and the values of an
Arrow column are all plain row-major numbers from some byte of a file on, so one memory map reads
them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

# numpy has no bfloat16: its two bytes are read as int16 and seen as bfloat16 by torch.
NUMPY_TYPES: dict[str, np.dtype[Any]] = {
    "bfloat16": np.dtype(np.int16),
    "float16": np.dtype("<f2"),
    "float32": np.dtype("<f4"),
    "float64": np.dtype("<f8"),
}


@dataclass(frozen=True)
class Block:
    """Rows of one file.

    Attributes:
        file: The file.
        rows: Number of rows.
        width: Numbers in a row.
        dtype: A key of `NUMPY_TYPES`.
        offset_bytes: Where the first row begins in the file.
        first_row: Which row of the file the first one is, for messages.
    """

    file: Path
    rows: int
    width: int
    dtype: str
    offset_bytes: int
    first_row: int = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of all rows."""
        return self.rows * self.width * NUMPY_TYPES[self.dtype].itemsize


@dataclass(frozen=True)
class Found:
    """What a reader found at a path.

    Attributes:
        format: Name of the format.
        blocks: All rows, in order.
        facts: What the format says of where the activations come from.
    """

    format: str
    blocks: tuple[Block, ...]
    facts: dict[str, object]
