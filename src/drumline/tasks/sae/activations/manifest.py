"""The manifest of an extracted set: what was read, how, and the checksum of every shard."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from drumline.config import Section
from drumline.errors import DataError

MANIFEST_NAME = "manifest.json"
OPTIONS_NAME = "extraction.json"
FORMAT_VERSION = 1
TENSOR_NAME = "activations"


class ShardRecord(Section):
    """One shard file of a set."""

    file: str = Field(description="Name of the file within the folder.")
    rows: int = Field(ge=1, description="Rows in it.")
    size_bytes: int = Field(ge=1, description="Size of the file.")
    sha256: str = Field(description="Checksum of the whole file.")


class Manifest(Section):
    """What a folder of extracted activations holds."""

    format: Literal["drumline-activations"] = Field(
        default="drumline-activations", description="Marks the file as ours."
    )
    version: Literal[1] = Field(default=1, description="Version of this schema.")
    model: str = Field(description="The language model, as it was named.")
    model_fingerprint: str = Field(description="Digest of the names and sizes of its files.")
    layer: int = Field(description="The layer after which the residual stream was taken, from 0.")
    hook_point: str = Field(description="The same place in TransformerLens' words.")
    dtype: str = Field(description="Type of the numbers stored.")
    width: int = Field(description="Numbers in a row.")
    count: int = Field(description="Rows in all shards.")
    length: int = Field(description="Tokens of a sequence.")
    drop_first: bool = Field(description="Whether position 0 of each sequence was left out.")
    outlier_ratio: float | None = Field(
        description="Positions were left out whose norm was above this many medians."
    )
    separator_token: int | None = Field(description="The token put after each document.")
    text: tuple[str, ...] = Field(description="Where the text came from.")
    text_sha256: str = Field(description="Checksum of the text that was read.")
    options: dict[str, Any] = Field(description="The options of the extraction.")
    shards: tuple[ShardRecord, ...] = Field(description="The files, in order.")


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder.

    Raises:
        DataError: If it is missing, damaged, or of a version this release does not know.
    """
    path = folder / MANIFEST_NAME
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror or error}.", remedy="Check the path."
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "the file"
        raise DataError(
            f"{path} is not a manifest of activations (version {FORMAT_VERSION}): "
            f"{key}: {first['msg']}.",
            remedy="Extract the activations again.",
            key=key,
        ) from None


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
