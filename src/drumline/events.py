"""The event log: what a run tells the world, one JSON object a line, append-only.

Training and launch write; the progress bar, trackers, `drumline show` and the service read. Each
line has the schema version `v`, the time `t` (seconds since 1970), a `kind`, the `attempt` and the
`rank` (-1 is the launcher), then the fields of its kind. A line is written by one `write` on a
descriptor opened for appending, so several processes of one machine may share a file. What is NOT
promised: that a line survives a full disk. The writer counts what it lost and says so later.

Kinds and their fields are listed in docs/events.md.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1
LAUNCHER = -1


class EventLog:
    """Appends events to one file. Never raises once open: a run must not die of its log."""

    def __init__(self, path: Path, *, attempt: int = 0, rank: int = LAUNCHER) -> None:
        self.path = path
        self.attempt = attempt
        self.rank = rank
        self.lost = 0
        self._silent = False
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._fd).st_size  # a process that died may have left a torn line
        self._torn = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"

    def emit(self, kind: str, **fields: Any) -> None:
        """Append one event. A value that is not finite is written as a string, as JSON has none."""
        if self._silent:
            return
        event = {
            "v": SCHEMA_VERSION,
            "t": round(time.time(), 3),
            "kind": kind,
            "attempt": self.attempt,
            "rank": self.rank,
        }
        if self.lost:
            event["lost_before"] = self.lost
        line = json.dumps({**event, **finite(fields)}, default=str) + "\n"
        data = (("\n" if self._torn else "") + line).encode()
        try:
            written = os.write(self._fd, data)
        except OSError:
            self.lost += 1
            return
        self._torn = written != len(data)
        self.lost = self.lost + 1 if self._torn else 0

    @contextmanager
    def silenced(self) -> Iterator[None]:
        """Within it nothing is written: for work that is not part of the run's history."""
        before, self._silent = self._silent, True
        try:
            yield
        finally:
            self._silent = before

    def close(self) -> None:
        """Close the file. Closing twice does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class EventReader:
    """Follows an event log from byte `start`; each call of `new` gives what has come since."""

    def __init__(self, path: Path, start: int = 0) -> None:
        self.path = path
        self._offset = start

    @property
    def offset(self) -> int:
        """The byte up to which events were given."""
        return self._offset

    def new(self) -> list[dict[str, Any]]:
        """All complete events not given before. A torn or foreign line is passed over."""
        return [event for _, event in self.located()]

    def located(self, at_most_bytes: int = -1) -> list[tuple[int, dict[str, Any]]]:
        """As `new`, each with the byte its line begins at.

        Args:
            at_most_bytes: Read about so much and leave the rest for the next call; -1: read all.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(at_most_bytes)
                if len(data) == at_most_bytes and not data.endswith(b"\n"):
                    data += file.readline()
        except FileNotFoundError:
            return []
        start, self._offset = self._offset, self._offset + data.rfind(b"\n") + 1
        return list(_parse(data[: self._offset - start], start))


def read_events(path: Path) -> list[dict[str, Any]]:
    """All events of a log, in the order written; an absent log has none."""
    return EventReader(path).new()


def _parse(data: bytes, start: int) -> Iterator[tuple[int, dict[str, Any]]]:
    for line in data.splitlines(keepends=True):
        begins, start = start, start + len(line)
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and event.get("v") == SCHEMA_VERSION and "kind" in event:
            yield begins, event


def finite(value: Any) -> Any:
    """The same data as JSON can hold it: keys are text, and so are NaN and the infinities."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(float(value))
    if isinstance(value, dict):
        return {_key(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def _key(key: Any) -> Any:
    return key if isinstance(key, str | int | float | None) else str(key)
