"""Traces that were made before, kept in the user's cache, so that who asks again need not wait.

A trace is kept in a file of its own, whose name is a digest of all that the question depends on:
the config but for keys that decide nothing here, the state of the files that its task names, and
the versions of Drumline and torch. In it is the list of source files that the tracing process had
imported. If one has changed since, be it Drumline's or the user's own, the trace counts no more.

What is in the store can be made again at any time. So a folder that cannot be used means that
nothing is kept, a file that cannot be read is one that is not there, and what has not been asked
for the longest goes once there is too much.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any

import drumline
from drumline.bench.sources import Stamp, stamp, unchanged
from drumline.config import RunConfig
from drumline.config.environment import cache_folder
from drumline.run_directory import write_atomically

FORMAT = 2
MOST_FILES, MOST_BYTES = 1000, 512 * 2**20
MOST_LISTED = 2000
"""Files of one folder that are looked at; a larger one is known by these."""

IRRELEVANT = frozenset(
    ["name", "seed", "devices", "micro_batch", "run_dir", "runs_dir", "logging", "checkpoint"]
)
"""Keys that change neither what a step does nor what it takes. A trace is asked for a micro-batch
beside the config; which devices there are comes in after it."""


def question(config: RunConfig, kind: str, options: Mapping[str, Any]) -> str:
    """The digest of all that one trace depends on, but for the code that makes it.

    Args:
        config: The run.
        kind: What is traced: "memory" or "work".
        options: What the trace is told beside the config.
    """
    keys = config.model_dump(mode="json", exclude=set(IRRELEVANT))
    depends_on = {
        "format": FORMAT,
        "made_by": _installation(),
        "kind": kind,
        "options": dict(options),
        "config": keys,
        "files": _named_files(keys.get("task")),
    }
    return sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()


class TraceStore:
    """Answers by question.

    Args:
        folder: Where they are kept; made with the first. None keeps nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def get(self, asked: str) -> dict[str, Any] | None:
        """The answer; None if there is none, or code it came from has changed."""
        if self._folder is None:
            return None
        path = self._path(asked)
        try:
            found = json.loads(path.read_text())
            answer, sources = found["answer"], found["sources"]
            whole = isinstance(answer, dict) and found["checksum"] == _checksum(answer, sources)
        except (OSError, ValueError, TypeError, KeyError):
            return None
        if not whole or not unchanged(sources):
            return None
        with suppress(OSError):
            os.utime(path)  # it was of use
        return dict(answer)

    def put(
        self, asked: str, answer: Mapping[str, Any], sources: Mapping[str, Stamp] | None
    ) -> None:
        """Keep an answer in place of one there may be.

        Args:
            asked: The question.
            answer: Plain data.
            sources: The files of the code that gave it; None if they are not known, and then
                nothing is kept.
        """
        if self._folder is None or sources is None:
            return
        kept = {"answer": answer, "sources": sources, "checksum": _checksum(answer, sources)}
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self._path(asked), json.dumps(kept))
            self._bound()

    def _path(self, asked: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{asked}.json"

    def _bound(self) -> None:
        """Let go of what was not asked for the longest, beyond what may be kept."""
        assert self._folder is not None
        ages = []
        for path in self._folder.iterdir():  # what a killed writer has left is among them
            if (state := stamp(path)) is not None:
                ages.append((state, path))
        size = 0
        for number, ((_, part), path) in enumerate(sorted(ages, reverse=True), start=1):
            size += part
            if number > MOST_FILES or size > MOST_BYTES:
                with suppress(OSError):
                    path.unlink()


def users_store() -> TraceStore:
    """The store in this user's cache."""
    folder = cache_folder()
    return TraceStore(None if folder is None else folder / "traces")


def _checksum(answer: Mapping[str, Any], sources: Mapping[str, Stamp]) -> str:
    return sha256(json.dumps([answer, sources], sort_keys=True).encode()).hexdigest()


@cache
def _installation() -> list[str]:
    """Whose traces these are: another installation has other packages."""
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = ""
    home = str(Path(drumline.__file__).parent)
    return [drumline.__version__, torch, platform.python_version(), sys.prefix, home]


def _named_files(task: Any) -> dict[str, list[Any]]:
    """The state of each file that a task's keys name, and of what is in the folders they name.

    Shapes come from data, and a file can be another under the same name.
    """
    found: dict[str, list[Any]] = {}
    for text in _texts({key: value for key, value in (task or {}).items() if key != "name"}):
        path = Path(text).absolute()
        with suppress(OSError, ValueError):
            inside = sorted(islice(_walk(path), MOST_LISTED)) if path.is_dir() else [path]
            states = [[str(each), state] for each in inside if (state := stamp(each)) is not None]
            if states:
                found[str(path)] = states
    return found


def _walk(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            yield Path(parent) / name


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
