"""Folders made by `drumline activations extract`: sharded safetensors with a manifest."""

from __future__ import annotations

from pathlib import Path

from drumline.errors import DataError
from drumline.tasks.sae.activations.block import Block, Found
from drumline.tasks.sae.activations.manifest import (
    TENSOR_NAME,
    Manifest,
    ShardRecord,
    file_sha256,
    read_manifest,
)
from drumline.tasks.sae.activations.safetensors_files import safetensors_block


def find_extracted(folder: Path, *, verify: bool) -> Found:
    """The shards of a folder, held against its manifest.

    Raises:
        DataError: If a shard is missing, cut short, of other rows, width or type than the manifest
            says, or (with `verify`) has another checksum.
    """
    manifest = read_manifest(folder)
    blocks = tuple(_shard(folder, manifest, shard, verify) for shard in manifest.shards)
    rows = sum(block.rows for block in blocks)
    if rows != manifest.count:
        raise DataError(
            f"The shards in {folder} hold {rows} rows, and the manifest counts {manifest.count}.",
            remedy="Extract the activations again.",
            rows=rows,
            count=manifest.count,
        )
    facts: dict[str, object] = manifest.model_dump(
        include={
            "model",
            "layer",
            "hook_point",
            "length",
            "drop_first",
            "outlier_ratio",
            "separator_token",
        }
    )
    return Found("drumline", blocks, facts)


def _shard(folder: Path, manifest: Manifest, shard: ShardRecord, verify: bool) -> Block:
    path = folder / shard.file
    block = safetensors_block(path, TENSOR_NAME)
    for what, said, there in (
        ("rows", shard.rows, block.rows),
        ("rows of width", manifest.width, block.width),
        ("numbers of type", manifest.dtype, block.dtype),
    ):
        if said != there:
            raise _refused(path, f"the manifest says {what} {said}, and the file holds {there}")
    if verify and file_sha256(path) != shard.sha256:
        raise _refused(path, "its checksum is not the one in the manifest")
    return block


def _refused(path: Path, why: str) -> DataError:
    return DataError(
        f"The shard {path} cannot be used: {why}.",
        remedy="Delete it and run the extraction again; only that shard is made anew.",
        file=str(path),
    )
