"""Whether one way is faster than another, by measurement: blocks in turn, compared in pairs.

Both ways take turns, so that clocks, temperatures and other users of the machine meet both alike,
and who is first changes from pair to pair. The median of the pairs' ratios counts.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from drumline.distributed import ControlPlane

LEAST_PAIRS, MOST_STEPS = 5, 200
WARM_UP = 2
"""Steps after each change that are not timed: caches and allocators settle."""


@dataclass(frozen=True)
class Rules:
    """How it is measured, and what counts.

    Attributes:
        minimum_gain: A switch is kept if it saves more than this part of a step, and more than the
            noise of the measurement.
        pairs: Blocks of each kind; fewer where they do not fit the budget, but at least 5.
        block_s: Seconds that one block should take.
        budget_s: Seconds that timing one switch may take.
        compared_steps: Steps whose results are compared.
        clock: Seconds; the device has been waited for when it is read.
    """

    minimum_gain: float = 0.02
    pairs: int = 9
    block_s: float = 0.1
    budget_s: float = 20.0
    compared_steps: int = 3
    clock: Callable[[], float] = time.perf_counter

    def blocks(self, step_s: float) -> tuple[int, int]:
        """Steps of a block and number of pairs, for steps of this length."""
        step_s = max(step_s, 1e-9)
        steps = max(1, min(MOST_STEPS, round(self.block_s / step_s)))
        fitting = int(self.budget_s / (2 * (steps + WARM_UP) * step_s))
        return steps, max(LEAST_PAIRS, min(self.pairs, fitting))


@dataclass(frozen=True)
class Timing:
    """Seconds a step without and with something; see `Row`."""

    before_s: float
    after_s: float
    gain: float
    noise: float

    def is_worth(self, minimum: float) -> bool:
        """Whether the gain is above the minimum, and above its own noise."""
        return self.gain > max(minimum, self.noise)


def measure_pairs(
    block: Callable[[bool], float], pairs: int, control: ControlPlane | None = None
) -> Timing:
    """Time blocks without and with something in turn; all ranks get the same answer.

    Args:
        block: Seconds a step of a block without (False) or with it (True).
        pairs: Blocks of each kind.
        control: All ranks take part, and the slowest counts.
    """
    times: dict[bool, list[float]] = {False: [], True: []}
    for number in range(pairs):
        for kind in (False, True) if number % 2 == 0 else (True, False):
            times[kind].append(block(kind))
    ranks = [times] if control is None else control.gather(times)
    return judge(*(slowest([rank[kind] for rank in ranks]) for kind in (False, True)))


def slowest(ranks: Sequence[Sequence[float]]) -> list[float]:
    """Of each block, the time of the rank that took longest."""
    return [max(times) for times in zip(*ranks, strict=True)]


def judge(before: Sequence[float], after: Sequence[float]) -> Timing:
    """The gain from paired times, with its noise.

    The noise is twice the standard error of a median, with the spread taken from the median
    absolute deviation (Rousseeuw and Croux 1993), which a few disturbed pairs do not move.
    """
    ratios = [b / a for a, b in zip(before, after, strict=True)]
    middle = statistics.median(ratios)
    spread = 1.4826 * statistics.median(abs(ratio - middle) for ratio in ratios)
    noise = 2 * math.sqrt(math.pi / 2) * spread / math.sqrt(len(ratios))
    return Timing(statistics.median(before), statistics.median(after), 1 - middle, noise)
