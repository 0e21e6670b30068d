"""A lock that is passed on in the order in which it was asked for.

SQLite lets one connection write at a time, and those that wait ask again now and then, so one that
writes often can keep another out. Within a process turns are taken here instead.
"""

from __future__ import annotations

import threading
from collections import deque


class Turns:
    """First come, first served. Not re-entrant."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._longer = threading.Condition(self._lock)
        self._queue: deque[threading.Event] = deque()
        self._held = False

    def acquire(self, timeout_s: float) -> bool:
        """Wait for one's turn; False if it has not come in time."""
        with self._lock:
            if not self._held:
                self._held = True
                return True
            turn = threading.Event()
            self._queue.append(turn)
            self._longer.notify_all()
        if turn.wait(timeout_s):
            return True
        with self._lock:
            if turn.is_set():
                return True
            self._queue.remove(turn)
        return False

    def release(self) -> None:
        """End one's turn; the one that waits longest has the next."""
        with self._lock:
            if self._queue:
                self._queue.popleft().set()
            else:
                self._held = False

    def wait_for_waiting(self, count: int, timeout_s: float) -> bool:
        """Wait until so many wait for their turn, or more; False if the time is over. For tests."""
        with self._lock:
            return self._longer.wait_for(lambda: len(self._queue) >= count, timeout_s)
