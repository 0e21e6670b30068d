"""How often something may be done, for each who does it and for all together."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from drumline.server.errors import TooOften

MOST_KNOWN = 10_000


class RateLimit:
    """A bucket of `most` that fills up again within `period_s`, for each key and for all together.

    Args:
        most: How often one may, at once.
        most_of_all: How often all together may.
        period_s: In which time so much is allowed again.
        clock: Seconds that never jump.
    """

    def __init__(
        self,
        most: int,
        most_of_all: int,
        period_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most, self._most_of_all, self._period_s = most, most_of_all, period_s
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._all: tuple[float, float] = (float(most_of_all), clock())

    def take(self, key: str, what: str) -> None:
        """Count one more.

        Raises:
            TooOften: If it is one too many; it does not count then.
        """
        now = self._clock()
        with self._lock:
            own = self._filled(self._buckets.get(key, (float(self._most), now)), self._most, now)
            everybody = self._filled(self._all, self._most_of_all, now)
            wait_s = max(self._wait(own, self._most), self._wait(everybody, self._most_of_all))
            if wait_s > 0:
                raise TooOften(f"{what} is tried too often.", retry_after_s=math.ceil(wait_s))
            self._buckets[key] = (own - 1, now)
            self._buckets.move_to_end(key)
            self._all = (everybody - 1, now)
            if len(self._buckets) > MOST_KNOWN:
                self._buckets.popitem(last=False)

    def _filled(self, bucket: tuple[float, float], most: int, now: float) -> float:
        left, since = bucket
        return min(float(most), left + (now - since) * most / self._period_s)

    def _wait(self, left: float, most: int) -> float:
        return max(0.0, 1 - left) * self._period_s / most
