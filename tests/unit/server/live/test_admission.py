"""How arrivals are spread, by a clock of the test's own."""

from __future__ import annotations

import random

from drumline.server.live.admission import Arrivals, Door


def test_a_burst_enters_at_once_and_then_one_after_another() -> None:
    door = Door(Arrivals(per_s=10, burst=3, longest_wait_s=0.45), lambda: 100.0)
    waits = [door.wait_s() for _ in range(9)]
    entered = [round(wait, 6) for wait in waits if wait is not None]
    assert entered == [0, 0, 0, 0.1, 0.2, 0.3, 0.4]
    assert waits[7:] == [None, None]


def test_room_comes_back_with_time_but_never_more_than_the_burst() -> None:
    now = [0.0]
    door = Door(Arrivals(per_s=10, burst=2, longest_wait_s=0), lambda: now[0])
    assert [door.wait_s() for _ in range(3)] == [0, 0, None]
    now[0] = 0.125
    assert [door.wait_s() for _ in range(2)] == [0, None]
    now[0] = 1000
    assert [door.wait_s() for _ in range(3)] == [0, 0, None]


def test_delays_of_fifty_tabs_are_spread_over_the_whole_range() -> None:
    door = Door(Arrivals(retry_ms=(500, 5000)), lambda: 0.0, random.Random(7))
    delays = sorted(door.retry_ms() for _ in range(50))
    assert 500 <= delays[0] < 1000
    assert 4500 < delays[-1] <= 5000
    busiest = max(sum(start <= other < start + 500 for other in delays) for start in delays)
    assert busiest <= 15
