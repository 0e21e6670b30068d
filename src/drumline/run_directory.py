"""The run directory: the interface between a training and everything that watches it.

    config.yaml    the whole config, as checked       plan.json      every decision made before
    events.jsonl   what happened (see events)         logs/          rank-N.log, appended to
    checkpoints/   step-N/, each whole or absent      result.json    how the run ended

This module knows names and small files only. What is inside a checkpoint belongs to
`training.checkpoint`.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from drumline.errors import RunDirectoryError
from drumline.events import finite, read_events


@dataclass(frozen=True)
class RunDirectory:
    """Paths and small files of one run."""

    path: Path

    @property
    def config_path(self) -> Path:
        """The whole config as YAML."""
        return self.path / "config.yaml"

    @property
    def plan_path(self) -> Path:
        """The plan of the latest attempt as JSON."""
        return self.path / "plan.json"

    @property
    def events_path(self) -> Path:
        """The event log."""
        return self.path / "events.jsonl"

    @property
    def logs_path(self) -> Path:
        """The folder of the ranks' logs."""
        return self.path / "logs"

    @property
    def checkpoints_path(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def result_path(self) -> Path:
        """How the run ended, as JSON; absent while it has not."""
        return self.path / "result.json"

    def rank_log(self, rank: int) -> Path:
        """The log of one rank, over all attempts."""
        return self.logs_path / f"rank-{rank}.log"

    @classmethod
    def create(cls, path: Path) -> RunDirectory:
        """Make the directory and prove that it can be written.

        Raises:
            RunDirectoryError: If it cannot be made or written, with the system's reason.
        """
        run = cls(path)
        probe = run.path / f".probe-{os.getpid()}"
        try:
            for folder in (run.path, run.logs_path):
                folder.mkdir(parents=True, exist_ok=True)
            probe.write_bytes(b"drumline")
            probe.unlink()
        except OSError as error:
            with suppress(OSError):
                probe.unlink()
            raise _unwritable(path, error) from error
        return run

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within it, no other process can hold the directory: two launches would mix their events
        and overwrite each other's checkpoints. The system lets go when the process ends.

        Raises:
            RunDirectoryError: If another process holds it, with its id.
        """
        with (self.path / ".held").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    raise self._in_use(file.name) from None
                # A file system without locks: nothing can be held, and nothing is promised.
            with suppress(OSError):  # a full disk
                file.truncate(0)
                file.write(str(os.getpid()))
                file.flush()
            yield

    def _in_use(self, path: str) -> RunDirectoryError:
        process = Path(path).read_text() or "unknown"
        return RunDirectoryError(
            f"The run directory {self.path} is in use by process {process}.",
            remedy="Wait until it has ended, or choose another directory.",
            path=str(self.path),
            process=process,
        )

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """Open one that exists.

        Raises:
            RunDirectoryError: If there is none at `path`.
        """
        run = cls(path)
        if not run.config_path.is_file():
            raise RunDirectoryError(
                f"{path} is not a run directory: it has no config.yaml.",
                remedy="List the runs there are with: drumline runs",
                path=str(path),
            )
        return run

    @classmethod
    def new_name(cls, name: str) -> str:
        """A folder name for a run: its name, the time, and six letters against collisions."""
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"
        return f"{plain}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"

    def write_config(self, config: dict[str, Any]) -> None:
        """Write config.yaml, whole or not at all.

        Raises:
            RunDirectoryError: If it cannot be written.
        """
        try:
            write_atomically(self.config_path, yaml.safe_dump(config, sort_keys=False))
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def write_json(self, path: Path, value: dict[str, Any]) -> None:
        """Write one of the JSON files, whole or not at all."""
        write_atomically(path, json.dumps(finite(value), indent=2, default=str) + "\n")

    def result(self) -> dict[str, Any] | None:
        """What result.json says, or None where the run has not ended or the file is damaged."""
        return _read_json(self.result_path)

    def plan(self) -> dict[str, Any] | None:
        """What plan.json says, or None."""
        return _read_json(self.plan_path)

    def events(self) -> list[dict[str, Any]]:
        """All events so far."""
        return read_events(self.events_path)


def find_runs(root: Path) -> list[RunDirectory]:
    """Run directories directly below `root`, newest first."""
    if not root.is_dir():
        return []
    runs = [RunDirectory(path) for path in root.iterdir() if (path / "config.yaml").is_file()]
    return sorted(runs, key=lambda run: run.config_path.stat().st_mtime, reverse=True)


def write_atomically(path: Path, text: str) -> None:
    """Write a small file so that a reader sees the old content or the new, never a part."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise


def _unwritable(path: Path, error: OSError) -> RunDirectoryError:
    return RunDirectoryError(
        f"The run directory {path} cannot be written: {error.strerror or error}.",
        remedy="Choose another with run_dir=PATH, or free space and rights there.",
        path=str(path),
    )


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
