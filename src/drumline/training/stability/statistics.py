"""Running mean and variance, and the question whether a value is far above them."""

from __future__ import annotations

import math
from typing import Any

LEAST_DEVIATION = 0.01
"""A standard deviation counts as at least this part of the mean: a loss that stands still has
next to none, and the first ripple on it is no spike."""


class RunningStatistics:
    """Exponentially weighted mean and variance.

    The first `window` values weigh the same, so that the start is no guess: until then these are
    the plain mean and (population) variance. The recurrence is that of Finch, "Incremental
    calculation of weighted mean and variance" (2009).

    Args:
        window: Steps over which old values fade to 1/e.
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self.count = 0
        self.mean = 0.0
        self.variance = 0.0

    def add(self, value: float) -> None:
        """Take one finite value in."""
        self.count += 1
        weight = 1.0 / min(self.count, self.window)
        difference = value - self.mean
        self.mean += weight * difference
        self.variance = (1.0 - weight) * (self.variance + weight * difference * difference)

    @property
    def deviation(self) -> float:
        """Standard deviation, at least `LEAST_DEVIATION` of the mean."""
        return max(math.sqrt(self.variance), LEAST_DEVIATION * abs(self.mean))

    def limit(self, deviations: float) -> float:
        """The value that lies so many standard deviations above the mean."""
        return self.mean + deviations * self.deviation

    def state_dict(self) -> dict[str, Any]:
        """Count, mean and variance."""
        return {"count": self.count, "mean": self.mean, "variance": self.variance}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.count = int(state["count"])
        self.mean, self.variance = float(state["mean"]), float(state["variance"])


class SpikeFinder:
    """Finds values far above the running mean, and keeps them from spoiling it.

    A value above the limit enters the statistics as the limit, so one spike does not hide the
    next, and a level that stays is followed after a while.

    Args:
        window, warmup: Of the statistics; nothing is found before `warmup` values.
        deviations: Standard deviations above the mean that make a spike.
    """

    def __init__(self, window: int, warmup: int, deviations: float) -> None:
        self.statistics = RunningStatistics(window)
        self._warmup, self._deviations = warmup, deviations

    def is_spike(self, value: float) -> bool:
        """Whether a finite value is a spike. It counts from now on."""
        known = self.statistics
        ready = known.count >= self._warmup
        limit = known.limit(self._deviations)
        spike = ready and value > limit
        known.add(limit if spike else value)
        return spike
