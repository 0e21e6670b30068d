"""What format a path holds. The order of the questions is the order of `_folder` and `_file`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from drumline.errors import DataError
from drumline.tasks.sae.activations.arrow_files import find_in_dataset
from drumline.tasks.sae.activations.block import Block, Found
from drumline.tasks.sae.activations.extracted import find_extracted
from drumline.tasks.sae.activations.manifest import MANIFEST_NAME, OPTIONS_NAME
from drumline.tasks.sae.activations.numpy_files import npy_block
from drumline.tasks.sae.activations.safetensors_files import safetensors_block

FORMATS = (
    "a folder made by `drumline activations extract`, a Hugging Face datasets folder, "
    ".safetensors or .npy files or a folder of either"
)


def find_activations(path: Path, *, name: str | None = None, verify: bool = False) -> Found:
    """The blocks of rows at a path, all of one width and type.

    Raises:
        DataError: If the path is missing, its format unknown, or its files do not fit together.
    """
    if not path.exists():
        raise DataError(
            f"There are no activations at {path}: no such file or folder.",
            remedy="Check the path, or make them with: drumline activations extract",
            path=str(path),
        )
    found = _folder(path, name, verify) if path.is_dir() else _file(path, name, verify)
    _agree(found.blocks)
    return found


def _folder(path: Path, name: str | None, verify: bool) -> Found:
    if (path / MANIFEST_NAME).is_file():
        return find_extracted(path, verify=verify)
    if (path / OPTIONS_NAME).is_file():
        raise DataError(
            f"The extraction in {path} is not finished: it has no {MANIFEST_NAME} yet.",
            remedy="Run the same command again; it goes on where it stopped.",
            path=str(path),
        )
    if (path / "dataset_info.json").is_file() and (path / "state.json").is_file():
        return find_in_dataset(path, name)
    for suffix, read in _readers(name).items():
        files = sorted(path.glob(f"*{suffix}"))
        if files:
            return _plain(suffix, [read(file) for file in files])
    raise _unknown(path, f"it holds {_listing(path)}")


def _file(path: Path, name: str | None, verify: bool) -> Found:
    if path.name == MANIFEST_NAME:
        return find_extracted(path.parent, verify=verify)
    read = _readers(name).get(path.suffix)
    if read is None:
        raise _unknown(path, f"its name ends in {path.suffix or 'nothing'}")
    return _plain(path.suffix, [read(path)])


def _readers(name: str | None) -> dict[str, Callable[[Path], Block]]:
    return {".safetensors": lambda file: safetensors_block(file, name), ".npy": npy_block}


def _plain(suffix: str, blocks: list[Block]) -> Found:
    return Found(suffix.removeprefix("."), tuple(block for block in blocks if block.rows), {})


def _agree(blocks: tuple[Block, ...]) -> None:
    """Refuse a set without rows, and files that differ in width or type."""
    if not blocks:
        raise DataError("The activations have no rows.", remedy="Check the path.")
    first = blocks[0]
    for block in blocks:
        for what, ours, theirs in (
            ("rows of width", first.width, block.width),
            ("numbers of type", first.dtype, block.dtype),
        ):
            if ours != theirs:
                raise DataError(
                    f"{first.file} holds {what} {ours}, and {block.file} holds {what} {theirs}.",
                    remedy="All files of a set must agree; take the odd one out.",
                    files=[str(first.file), str(block.file)],
                )


def _unknown(path: Path, why: str) -> DataError:
    return DataError(
        f"The format of the activations at {path} is not known: {why}.",
        remedy=f"Give {FORMATS}.",
        path=str(path),
    )


def _listing(path: Path) -> str:
    names = sorted(entry.name + "/" * entry.is_dir() for entry in path.iterdir())
    if not names:
        return "nothing"
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    splits = " (a dict of data sets: give one of its folders)" * ("dataset_dict.json" in names)
    return ", ".join(names[:4]) + more + splits
