"""Logs and artifacts of run directories, without ever leaving the configured roots.

A run directory must lie below `run_root` or one of `script_roots`. From the root down each part of
a path is opened on its own and without following links (O_NOFOLLOW), so that nothing can be swapped
for a link between looking and opening. Only ordinary files are read.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from drumline.config.service import ServiceSettings
from drumline.jobs.training import Training
from drumline.server.errors import NotFound

LOGS = "logs"
MOST_FILES = 10_000
MOST_DEPTH = 12
CHUNK_BYTES = 1 << 20

Kind = Literal["checkpoint", "export", "plot", "table", "record", "other"]
_RANK = re.compile(r"rank-(\d+)\.log")
_RECORDS = frozenset({"config.yaml", "plan.json", "events.jsonl", "result.json"})
_KINDS: dict[str, Kind] = {
    ".png": "plot",
    ".svg": "plot",
    ".pdf": "plot",
    ".csv": "table",
    ".parquet": "table",
    ".safetensors": "export",
    ".gguf": "export",
}
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class Found:
    """A file below a run directory."""

    path: str
    bytes: int
    modified_ms: int

    @property
    def kind(self) -> Kind:
        """What it is, by its place and ending."""
        parts = PurePosixPath(self.path)
        if parts.parts[0] == "checkpoints":
            return "checkpoint"
        if self.path in _RECORDS:
            return "record"
        return _KINDS.get(parts.suffix.lower(), "other")


@dataclass(frozen=True)
class Part:
    """A stretch of a file's bytes, and how long the file is."""

    data: bytes
    offset: int
    size: int


class RunFiles:
    """The files of one training's run directory.

    Raises:
        NotFound: If it has none yet, or none that may be looked into from here.
    """

    def __init__(self, training: Training, settings: ServiceSettings) -> None:
        if training.run_dir is None:
            raise NotFound(
                f"Training {training.id} has no run directory yet.",
                remedy="It gets one when it first starts.",
            )
        self._training = training
        self._root, self._inside = _place(Path(training.run_dir), settings)

    def all(self) -> tuple[list[Found], bool]:
        """All files but logs, by path, and whether these are all."""
        found: list[Found] = []
        with self._folder(()) as folder:
            complete = _walk(folder, (), found, skip=frozenset({LOGS}))
        return sorted(found, key=lambda one: one.path), complete

    def logs(self) -> list[tuple[str, int | None, int]]:
        """Name, rank and length of every log, ranks first."""
        found: list[Found] = []
        try:
            with self._folder((LOGS,)) as folder:
                _walk(folder, (), found, depth=MOST_DEPTH)
        except NotFound:
            return []
        logs = [(one.path, rank_of(one.path), one.bytes) for one in found]
        return sorted(logs, key=lambda log: (log[1] is None, log[1] or 0, log[0]))

    def read(self, path: str, offset: int | None, most: int) -> Part:
        """Part of a file: from byte `offset`, or its last `most` bytes.

        Raises:
            NotFound: If there is no such ordinary file below the run directory.
        """
        with self.opened(path) as (fd, size):
            start = max(0, size - most) if offset is None else min(offset, size)
            return Part(os.pread(fd, most, start), start, size)

    @contextmanager
    def opened(self, path: str) -> Iterator[tuple[int, int]]:
        """A descriptor of a file, closed at the end, and the file's length.

        Raises:
            NotFound: If there is no such ordinary file below the run directory.
        """
        fd, size = self.open(path)
        try:
            yield fd, size
        finally:
            os.close(fd)

    def open(self, path: str) -> tuple[int, int]:
        """A descriptor of a file, which the caller closes, and the file's length.

        Raises:
            NotFound: If there is no such ordinary file below the run directory.
        """
        parts = _parts(path)
        if parts is None:
            raise self._absent(path)
        with self._folder(parts[:-1]) as folder:
            try:
                fd = os.open(parts[-1], _FILE, dir_fd=folder)
            except (OSError, ValueError):
                raise self._absent(path) from None
        told = os.fstat(fd)
        if not stat.S_ISREG(told.st_mode):
            os.close(fd)
            raise self._absent(path)
        return fd, told.st_size

    @contextmanager
    def _folder(self, parts: tuple[str, ...]) -> Iterator[int]:
        fd = -1
        try:
            fd = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            for part in (*self._inside, *parts):
                inner = os.open(part, _FOLDER, dir_fd=fd)
                os.close(fd)
                fd = inner
        except (OSError, ValueError) as error:
            if fd >= 0:
                os.close(fd)
            missing = isinstance(error, OSError) and error.errno == errno.ENOENT
            raise (
                self._elsewhere() if missing and not parts else self._absent("/".join(parts))
            ) from None
        try:
            yield fd
        finally:
            os.close(fd)

    def _absent(self, path: str) -> NotFound:
        return NotFound(
            f"Training {self._training.id} has no file {path[:200]!r}.",
            remedy="Its files are listed at its path `artifacts`, its logs at `logs`.",
        )

    def _elsewhere(self) -> NotFound:
        host = f" It ran on host {self._training.host_id}." if self._training.host_id else ""
        return NotFound(
            f"The run directory of training {self._training.id} is not on this machine.{host}",
            remedy="Let DRUMLINE_RUN_ROOT be on a disk that all hosts share.",
        )


def rank_of(name: str) -> int | None:
    """The rank whose log this is."""
    match = _RANK.fullmatch(name)
    return int(match[1]) if match else None


def _place(path: Path, settings: ServiceSettings) -> tuple[str, tuple[str, ...]]:
    """The root that the directory lies below, links of the root followed, and the parts from there.

    Raises:
        NotFound: If it lies below none.
    """
    whole = os.path.normpath(path.absolute())
    for root in (settings.run_root, *settings.script_roots):
        real = os.path.realpath(root)
        for begin in (os.path.normpath(root.expanduser().absolute()), real):
            if whole != begin and Path(whole).is_relative_to(begin):
                return real, Path(whole).relative_to(begin).parts
    raise NotFound(
        "The run directory lies outside the folders that the service may look into.",
        remedy="They are DRUMLINE_RUN_ROOT and DRUMLINE_SCRIPT_ROOTS.",
    )


def _parts(path: str) -> tuple[str, ...] | None:
    """The parts of a path that stays below; None of any other."""
    parts = tuple(path.split("/"))
    if any(part in ("", ".", "..") or "\x00" in part for part in parts):
        return None
    return parts if len(parts) <= MOST_DEPTH else None


def _walk(
    folder: int,
    inside: tuple[str, ...],
    found: list[Found],
    *,
    depth: int = 1,
    skip: frozenset[str] = frozenset(),
) -> bool:
    """Ordinary files below an open folder, links left out; whether that is all of them."""
    complete = True
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name in skip or entry.name.startswith(".") or not _is_text(entry.name):
                continue
            if len(found) >= MOST_FILES:
                return False
            path = (*inside, entry.name)
            try:
                told = entry.stat(follow_symlinks=False)
            except OSError:  # gone meanwhile
                continue
            if stat.S_ISREG(told.st_mode):
                found.append(Found("/".join(path), told.st_size, told.st_mtime_ns // 1_000_000))
            elif stat.S_ISDIR(told.st_mode):
                complete &= _enter(folder, entry.name, path, found, depth)
    return complete


def _enter(folder: int, name: str, path: tuple[str, ...], found: list[Found], depth: int) -> bool:
    if depth >= MOST_DEPTH:
        return False
    try:
        inner = os.open(name, _FOLDER, dir_fd=folder)
    except OSError:
        return True
    try:
        return _walk(inner, path, found, depth=depth + 1)
    finally:
        os.close(inner)


def _is_text(name: str) -> bool:
    """Whether a name can be told in JSON."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
