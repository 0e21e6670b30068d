"""Follows a run from the process that launches it: reads its events in a thread, feeds readers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from drumline.cli.progress import ProgressView
from drumline.events import EventReader

POLL_S = 0.1


class Reader(Protocol):
    """Whatever reads events: the display or a tracker."""

    def feed(self, events: list[dict[str, Any]]) -> None:
        """Take more events."""


class Closable(Reader, Protocol):
    """A reader that has something to finish."""

    def close(self) -> None:
        """Write out what is pending."""


class Follower:
    """Hands the events of a run to the display and other readers while it goes on.

    It is what `launching` tells of a run directory and of the ranks' output. Events that a run
    directory already holds belong to earlier launches and are passed over.
    """

    def __init__(self, view: ProgressView) -> None:
        self._view = view
        self._readers: list[Reader] = [view]
        self._to_close: list[Closable] = []
        self._sources: list[EventReader] = []
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._follow, name="events", daemon=True)

    def __enter__(self) -> Follower:
        self._view.__enter__()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._pump()
        for reader in self._to_close:
            self._guarded(reader, reader.close)
        self._view.__exit__(kind, error, traceback)

    def watch(self, events_path: Path, readers: Iterable[Closable] = ()) -> None:
        """Follow this event log from its present end; the readers are closed when it is over."""
        source, readers = EventReader(events_path), list(readers)
        source.new()
        with self._lock:
            self._sources.append(source)
            self._readers += readers
            self._to_close += readers

    def output(self, rank: int, line: str) -> None:
        """Show a line that a rank printed."""
        del rank
        self._view.line(line)

    def _follow(self) -> None:
        while not self._stop.wait(POLL_S):
            self._pump()

    def _pump(self) -> None:
        with self._lock:
            sources, readers = list(self._sources), list(self._readers)
        for source in sources:
            events = source.new()
            for reader in readers if events else ():
                if not self._guarded(reader, partial(reader.feed, events)):
                    with self._lock:
                        self._readers.remove(reader)

    def _guarded(self, reader: Reader, call: Callable[[], None]) -> bool:
        """Whether it went well. Training does not depend on a reader: one that breaks is named."""
        try:
            call()
        except Exception as error:
            if reader is not self._view:
                name = type(reader).__name__
                self._view.warn(f"{name} broke and is left out from here on: {error}")
            return False
        return True
