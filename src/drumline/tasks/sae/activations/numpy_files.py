"""Where the rows of a .npy file lie. Reads the header only."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from drumline.errors import DataError
from drumline.tasks.sae.activations.block import NUMPY_TYPES, Block

_NAMES = {dtype: name for name, dtype in NUMPY_TYPES.items() if name != "bfloat16"}


def npy_block(file: Path) -> Block:
    """The rows of a .npy file.

    Raises:
        DataError: If it is no such file, cut short, or not a row-major matrix of floats.
    """
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise DataError(
            f"{file} cannot be read: {error.strerror or error}.",
            remedy="Check the path and its rights.",
            file=str(file),
        ) from None
    except (ValueError, EOFError) as error:
        raise DataError(
            f"{file} is cut short or is not a .npy file of numbers: {error}.",
            remedy="Write it again with numpy.save.",
            file=str(file),
        ) from None
    if array.ndim != 2 or array.dtype not in _NAMES or not array.flags.c_contiguous:
        layout = "" if array.flags.c_contiguous else ", column by column"
        raise DataError(
            f"{file} holds {array.dtype} of shape {list(array.shape)}{layout}.",
            remedy="Activations are [rows, width], row by row, of float16, float32 or float64.",
            file=str(file),
        )
    if not isinstance(array, np.memmap):  # an array without rows cannot be mapped
        return Block(file, 0, array.shape[1], _NAMES[array.dtype], 0)
    return Block(file, array.shape[0], array.shape[1], _NAMES[array.dtype], array.offset)
