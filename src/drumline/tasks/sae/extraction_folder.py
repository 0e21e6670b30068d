"""The folder of an extraction, finished or not: its shards, their records, and what it is of.

extraction.json          what is being extracted, written first
shard-00000.safetensors  rows of some sequences        shard-00000.json  its record, written last
manifest.json            all of it, written when every shard is there
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from drumline.config import Section
from drumline.errors import BadInput, DataError
from drumline.run_directory import write_atomically
from drumline.tasks.sae.activations.manifest import (
    MANIFEST_NAME,
    OPTIONS_NAME,
    TENSOR_NAME,
    Manifest,
    ShardRecord,
    read_manifest,
)
from drumline.tasks.sae.extract_options import ExtractOptions

if TYPE_CHECKING:
    from torch import Tensor

_WITHOUT_EFFECT = {"out", "text", "batch"}  # the text counts by its content
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class Identity(Section):
    """What makes two extractions the same."""

    options: dict[str, Any] = Field(description="the options that change what is stored")
    text_sha256: str = Field(description="checksum of the text")
    model_fingerprint: str = Field(description="digest of the model's files")

    @classmethod
    def of(cls, options: ExtractOptions, text_sha256: str, fingerprint: str) -> Identity:
        """The identity of an extraction."""
        kept = options.model_dump(mode="json", exclude=_WITHOUT_EFFECT)
        return cls(options=kept, text_sha256=text_sha256, model_fingerprint=fingerprint)


class ExtractionFolder:
    """Small files and shards of one extraction."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def check(self, identity: Identity) -> None:
        """Refuse a folder that holds, or is being filled with, something else.

        Raises:
            BadInput: Naming what differs, with both values.
        """
        there = self._identity()
        if there is None:
            return
        differing = [
            (name, there.options.get(name), wanted)
            for name, wanted in identity.options.items()
            if there.options.get(name) != wanted
        ]
        for name, key in (("text", "text_sha256"), ("model", "model_fingerprint")):
            if getattr(there, key) != getattr(identity, key):
                differing.append((f"content of the {name}", getattr(there, key)[:12], None))
        if differing:
            name, old, new = differing[0]
            asked = "" if new is None else f", not {new}"
            raise BadInput(
                f"{self.path} holds an extraction with another {name}: {old}{asked}.",
                remedy="Give another --out, or delete that folder.",
                out=str(self.path),
                option=name,
                there=old,
                asked=new,
            )

    def complete_manifest(self) -> Manifest | None:
        """The manifest, if there is one and all its shards are there in full size."""
        if not (self.path / MANIFEST_NAME).is_file():
            return None
        manifest = self.manifest()
        return manifest if all(map(self._is_there, manifest.shards)) else None

    def manifest(self) -> Manifest:
        """The manifest of a finished extraction."""
        return read_manifest(self.path)

    def begin(self, identity: Identity) -> None:
        """Make the folder, say what it will hold, and clear what an interruption left."""
        with _writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            for leftover in self.path.glob(".shard-*"):
                leftover.unlink()
            write_atomically(self.path / OPTIONS_NAME, identity.model_dump_json(indent=2) + "\n")

    def finish(self, manifest: Manifest) -> None:
        """Write the manifest."""
        with _writing(self.path):
            write_atomically(self.path / MANIFEST_NAME, manifest.model_dump_json(indent=2) + "\n")

    def record(self, number: int) -> ShardRecord | None:
        """The record of a shard that is there in full size, or None."""
        try:
            data = json.loads(self._sidecar(number).read_bytes())
            record = ShardRecord.model_validate(data)
        except (OSError, ValueError):
            return None
        return record if self._is_there(record) else None

    def written(self, number: int) -> ShardRecord:
        """The record of a shard that some rank has written.

        Raises:
            DataError: If it is not to be seen from here.
        """
        record = self.record(number)
        if record is None:
            raise DataError(
                f"Shard {number} in {self.path} was written by another rank and is not there.",
                remedy="All ranks must see the same folder: give one on a shared file system.",
                shard=number,
            )
        return record

    def write(self, number: int, rows: Tensor) -> None:
        """Write a shard and its record, whole or not at all.

        Raises:
            DataError: If the disk is full or the folder cannot be written.
        """
        from safetensors.torch import save

        data = save({TENSOR_NAME: rows.contiguous()})
        name = f"shard-{number:05d}.safetensors"
        record = ShardRecord(
            file=name,
            rows=len(rows),
            size_bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
        )
        with _writing(self.path):
            _write_whole(self.path / name, data)
            write_atomically(self._sidecar(number), record.model_dump_json() + "\n")

    def _sidecar(self, number: int) -> Path:
        return self.path / f"shard-{number:05d}.json"

    def _is_there(self, record: ShardRecord) -> bool:
        path = self.path / record.file
        return path.is_file() and path.stat().st_size == record.size_bytes

    def _identity(self) -> Identity | None:
        if (self.path / MANIFEST_NAME).is_file():
            manifest = self.manifest()
            return Identity(**{key: getattr(manifest, key) for key in Identity.model_fields})
        try:
            return Identity.model_validate_json((self.path / OPTIONS_NAME).read_bytes())
        except (OSError, ValueError):
            return None


def _write_whole(path: Path, data: bytes) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turn the system's refusals into one error with a remedy."""
    try:
        yield
    except OSError as error:
        full = error.errno in _NO_SPACE
        raise DataError(
            f"Activations cannot be written to {folder}: {error.strerror or error}.",
            remedy="Free space there and run the same command again; finished shards are kept."
            if full
            else "Choose another folder with --out, or mend the rights there.",
            out=str(folder),
        ) from error
