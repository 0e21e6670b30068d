"""Where the rows of a safetensors file lie. Reads the header only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from drumline.errors import DataError
from drumline.tasks.sae.activations.block import Block

_TYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}
_LONGEST_HEADER_BYTES = 100_000_000  # the format's own bound


def safetensors_block(file: Path, name: str | None = None) -> Block:
    """The rows of the named tensor, or of the only one with two dimensions.

    Raises:
        DataError: If the file is missing, cut short, or has no such tensor.
    """
    header, start = _header(file)
    name = name or _only_matrix(file, header)
    if name not in header:
        raise DataError(
            f"{file} has no tensor {name}; it has {_names(header)}.",
            remedy="Name one of these.",
            file=str(file),
        )
    tensor = header[name]
    if len(tensor["shape"]) != 2 or tensor["dtype"] not in _TYPES:
        raise DataError(
            f"The tensor {name} of {file} is {tensor['dtype']} of shape {tensor['shape']}.",
            remedy=f"Activations are [rows, width] of type {', '.join(_TYPES)}.",
            file=str(file),
        )
    rows, width = tensor["shape"]
    return Block(file, rows, width, _TYPES[tensor["dtype"]], start + tensor["data_offsets"][0])


def _header(file: Path) -> tuple[dict[str, Any], int]:
    """The tensors of a file by name, and the byte at which their data begins."""
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if size < 8 or 8 + length > size or length > _LONGEST_HEADER_BYTES:
                raise _damaged(file, f"its header does not fit into its {size} bytes")
            header: dict[str, Any] = json.loads(opened.read(length))
        header.pop("__metadata__", None)
        end = 8 + length + max((t["data_offsets"][1] for t in header.values()), default=0)
    except OSError as error:
        raise DataError(
            f"{file} cannot be read: {error.strerror or error}.",
            remedy="Check the path and its rights.",
            file=str(file),
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _damaged(file, "its header is not that of a safetensors file") from None
    if size != end:
        raise _damaged(file, f"it has {size} bytes where its header says {end}")
    return header, 8 + length


def _only_matrix(file: Path, header: dict[str, Any]) -> str:
    matrices = [name for name, tensor in header.items() if len(tensor["shape"]) == 2]
    if len(matrices) != 1:
        raise DataError(
            f"{file} has {len(matrices)} tensors with two dimensions, among {_names(header)}.",
            remedy="Say which one holds the activations.",
            file=str(file),
        )
    return matrices[0]


def _names(header: dict[str, Any]) -> str:
    return ", ".join(f"{name} {tensor['shape']}" for name, tensor in header.items()) or "none"


def _damaged(file: Path, why: str) -> DataError:
    return DataError(
        f"{file} is cut short or damaged: {why}.", remedy="Write it again.", file=str(file)
    )
