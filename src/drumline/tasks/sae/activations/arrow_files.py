"""Hugging Face datasets folders of cached activations, as SAELens' CacheActivationsRunner writes.

A column is named by the hook and holds one [context, width] array for each sequence. Its numbers
lie one after the other in the Arrow files, so a context is `context` rows. pyarrow finds the place
and is not needed afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from drumline.errors import DataError, MissingPackage
from drumline.tasks.sae.activations.block import Block, Found

_BITS = {"halffloat": "float16", "float": "float32", "double": "float64"}
_FEATURE_TYPES = {"float16": "float16", "float32": "float32", "float64": "float64"}


def find_in_dataset(folder: Path, name: str | None = None) -> Found:
    """The rows of the column of activations in a folder that `Dataset.save_to_disk` wrote.

    Raises:
        DataError: If there is no such column, or several and none is named, or a file is damaged.
        MissingPackage: If pyarrow is not installed.
    """
    try:
        columns = json.loads((folder / "dataset_info.json").read_text())["features"]
        files = [folder / entry["filename"] for entry in _state(folder)["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{folder} is not a whole Hugging Face datasets folder: {error}.",
            remedy="Save it again with Dataset.save_to_disk.",
            path=str(folder),
        ) from None
    name = _column(folder, columns, name)
    context, width = columns[name]["shape"]
    dtype = _FEATURE_TYPES[columns[name]["dtype"]]
    blocks = [b for file in files for b in _blocks(file, name, (context, width), dtype)]
    facts: dict[str, object] = {"hook_point": name, "length": context}
    return Found("huggingface", tuple(blocks), facts)


def _state(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((folder / "state.json").read_text())
    return state


def _column(folder: Path, columns: dict[str, Any], name: str | None) -> str:
    """The name of the column to read: one that holds [context, width] floats."""
    usable = [key for key, column in columns.items() if _is_activations(column)]
    if name in usable:
        return name
    if name is None and len(usable) == 1:
        return usable[0]
    wanted = f"no column {name} of" if name else f"{len(usable)} columns of"
    raise DataError(
        f"{folder} has {wanted} activations (Array2D of floats); "
        f"its columns are {', '.join(columns)}.",
        remedy=f"Name one of: {', '.join(usable)}." if usable else "Cache activations into one.",
        path=str(folder),
    )


def _is_activations(column: Any) -> bool:
    return (
        isinstance(column, dict)
        and column.get("_type") == "Array2D"
        and column.get("dtype") in _FEATURE_TYPES
        and None not in column["shape"]
    )


def _blocks(file: Path, name: str, shape: tuple[int, int], dtype: str) -> Iterator[Block]:
    """One block for each record batch of an Arrow stream."""
    try:
        import pyarrow as pa
    except ImportError:
        raise MissingPackage("pyarrow", "sae", "Reading a Hugging Face datasets folder") from None
    context, width = shape
    row = 0
    try:
        with pa.memory_map(str(file)) as mapped:
            whole = mapped.read_buffer()
            for batch in pa.ipc.open_stream(whole):
                rows = batch.num_rows * context
                offset = _offset(batch.column(name), rows * width, dtype, whole)
                if rows:
                    yield Block(file, rows, width, dtype, offset, first_row=row)
                row += rows
    except (OSError, KeyError, ValueError) as error:  # pyarrow's errors derive from these
        raise DataError(
            f"{file} is cut short, damaged or laid out in another way: {error}.",
            remedy="Save the data set again with Dataset.save_to_disk.",
            file=str(file),
        ) from None


def _offset(column: Any, count: int, dtype: str, whole: Any) -> int:
    """Where the numbers of a column begin in the file.

    Raises:
        ValueError: If they do not lie there one after the other.
    """
    values = getattr(column, "storage", column)
    while hasattr(values, "flatten") and str(values.type).startswith(("list", "fixed_size_list")):
        if values.null_count:
            raise ValueError("a sequence is missing")
        values = values.flatten()
    if _BITS.get(str(values.type)) != dtype or len(values) != count or values.null_count:
        raise ValueError(f"a column of {len(values)} {values.type} where {count} {dtype} belong")
    data = values.buffers()[1]
    offset = data.address - whole.address + values.offset * values.type.bit_width // 8
    if not 0 <= offset <= whole.size - count * values.type.bit_width // 8:
        raise ValueError("its numbers are compressed")
    return int(offset)
