"""How connections are spread over time: new ones are let in at a bounded rate, and each is told its
own delay before it comes again.

The delay is told when a connection begins, so that a client knows it even if the service is killed
and cannot say anything any more.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Arrivals:
    """How many may come, and when.

    `per_s` new connections a second after a first `burst`; one that would have to wait longer than
    `longest_wait_s`, or finds `clients` there, is sent away. Delays before a reconnect are drawn
    from `retry_ms`. A connection lasts `longest_s`, so that who may watch is asked anew.
    """

    clients: int = 4096
    per_s: float = 200.0
    burst: int = 100
    longest_wait_s: float = 5.0
    retry_ms: tuple[int, int] = (500, 5_000)
    longest_s: float = 3_600.0


class Door:
    """Says for each arrival how long it has to wait. Time and chance are given, for tests.

    Args:
        arrivals: The bounds.
        clock: Seconds that only grow.
        chance: Where jitter comes from.
    """

    def __init__(
        self, arrivals: Arrivals, clock: Callable[[], float], chance: random.Random | None = None
    ) -> None:
        self.arrivals = arrivals
        self._clock = clock
        self._chance = chance or random.Random()
        self._next_s = clock() - arrivals.burst / arrivals.per_s

    def wait_s(self) -> float | None:
        """Seconds until this arrival may enter; None if it is to be sent away."""
        now = self._clock()
        earliest = now - self.arrivals.burst / self.arrivals.per_s
        turn = max(self._next_s, earliest) + 1 / self.arrivals.per_s
        if turn - now > self.arrivals.longest_wait_s:
            return None
        self._next_s = turn
        return max(0.0, turn - now)

    def retry_ms(self) -> int:
        """A delay before the next attempt, another for each client."""
        return self._chance.randint(*self.arrivals.retry_ms)
