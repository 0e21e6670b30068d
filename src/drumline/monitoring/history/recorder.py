"""Writes readings from a thread of its own, so that a slow database holds nobody up."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable

from drumline.database import DatabaseError
from drumline.monitoring.history.history import History
from drumline.monitoring.readings import Reading

logger = logging.getLogger(__name__)
MOST_WAITING = 200_000


class Recorder:
    """Gathers readings and writes them together.

    Readings that the database does not take wait for the next try; beyond `most_waiting` the oldest
    are given up and counted.

    Args:
        history: Where they go.
        every_s: How often they are written. A crash loses no more than so much.
        most_waiting: How many readings may wait.
    """

    def __init__(
        self, history: History, every_s: float = 2.0, *, most_waiting: int = MOST_WAITING
    ) -> None:
        self._history = history
        self._every_s = every_s
        self._waiting: deque[Reading] = deque(maxlen=most_waiting)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="drumline-recorder", daemon=True)
        self._failing = False
        self.given_up = 0
        """Readings that were never written."""

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def put(self, readings: Iterable[Reading]) -> None:
        """Have readings written soon. Never waits for the database."""
        with self._lock:
            for reading in readings:
                self.given_up += len(self._waiting) == self._waiting.maxlen
                self._waiting.append(reading)

    def flush(self) -> bool:
        """Write all that waits, now; whether the database took it."""
        with self._lock:
            taken = list(self._waiting)
            self._waiting.clear()
        try:
            self._history.write(taken)
        except DatabaseError as error:
            self._put_back(taken)
            if not self._failing:
                logger.warning("Readings wait to be written: %s", error)
            self._failing = True
            return False
        self._failing = False
        return True

    def stop(self, timeout_s: float = 5.0) -> None:
        """Write what waits, and end."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            self.flush()
        self.flush()

    def _put_back(self, taken: list[Reading]) -> None:
        with self._lock:
            newer = list(self._waiting)
            together = taken + newer
            most = self._waiting.maxlen or 0
            self.given_up += max(0, len(together) - most)
            self._waiting = deque(together[-most:], maxlen=most)
