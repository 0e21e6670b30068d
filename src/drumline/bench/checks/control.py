"""Checks of the control plane: how long a vote takes, and whether the nodes' clocks agree."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

from drumline.bench.checks.check import CheckContext, Seat
from drumline.bench.checks.finding import Finding, passed, warned

VOTES = 30
SLOW_VOTE_MS = 50.0
MOST_SKEW_S = 1.0


def measure_votes(seat: Seat) -> float:
    """Median time of a vote in milliseconds."""
    control, times = seat.together.control, []
    control.barrier("votes")
    for _ in range(VOTES):
        start = time.perf_counter()
        control.any(False)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1000


def judge_votes(context: CheckContext, measured: Sequence[float]) -> Sequence[Finding]:
    """A vote is called at each step, beside the computation."""
    del context
    slowest, name = max(measured), "vote latency"
    text, value = f"{slowest:.2f} ms", {"median_ms": slowest}
    if slowest > SLOW_VOTE_MS:
        remedy = (
            "Look for ranks without a core of their own, or a slow network (GLOO_SOCKET_IFNAME)."
        )
        return [warned(name, f"{text}, above {SLOW_VOTE_MS:g} ms", remedy, value)]
    return [passed(name, text, value)]


def measure_clock(seat: Seat) -> dict[str, Any]:
    """This node's time, read as all ranks leave a barrier: exact to about a vote's latency."""
    import socket

    seat.together.control.barrier("clock")
    return {"host": socket.gethostname(), "time_s": time.time()}


def judge_clock(context: CheckContext, measured: Sequence[dict[str, Any]]) -> Sequence[Finding]:
    """Events and checkpoints are ordered by time across nodes."""
    del context
    times = [one["time_s"] for one in measured]
    skew, name = max(times) - min(times), "clock skew"
    text, value = f"{skew * 1000:,.0f} ms between {len(times)} ranks", {"skew_s": skew}
    if skew > MOST_SKEW_S:
        early = min(measured, key=lambda one: one["time_s"])["host"]
        late = max(measured, key=lambda one: one["time_s"])["host"]
        text = f"the clock of {late} is {skew:.1f} s ahead of that of {early}"
        return [warned(name, text, "Let chrony or ntpd set the clocks of all nodes.", value)]
    return [passed(name, text, value)]
