"""Shares in proportion to measured speed, and ranks that are slower than their like.

Pure functions of what the ranks measured, so that all ranks come to the same answer. How speed is
measured, and when shares may change, is left to `drumline.training.balance`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from drumline.planning.shares import cut_shares

LEAST_GAIN = 0.03
"""Shares move only if a step gets shorter by more than this: less is not worth a new loader."""

SLOW = 0.8
"""A rank below this part of the speed of like devices is named in a warning."""


@dataclass(frozen=True)
class OwnWork:
    """What a rank's own part of a step takes, its waits for other ranks left out.

    Attributes:
        reading_s: Seconds of waiting for data, for each sample.
        computing_s: Seconds of forward and backward, for each sample; a median of some steps.
        spread: How far the middle half of those steps lies apart, as a part of the median.
        on_processor: The part of the computing in which a CPU process had a processor; None where
            another device computes.
    """

    reading_s: float
    computing_s: float
    spread: float = 0.0
    on_processor: float | None = None

    @property
    def samples_per_s(self) -> float:
        """The rank's own speed."""
        return 1.0 / (self.reading_s + self.computing_s)

    @property
    def reading(self) -> float:
        """The part of its time in which the rank waits for data."""
        return self.reading_s / (self.reading_s + self.computing_s)


def own_work(
    samples: Sequence[int],
    waited_s: Sequence[float],
    computed_s: Sequence[float],
    on_processor: float | None = None,
) -> OwnWork:
    """What some timed steps say of a rank.

    Args:
        samples: The rank's samples in each of them; not 0.
        waited_s: How long it waited for them. Their mean counts, as few batches wait for all.
        computed_s: How long it computed. The median counts, so that some may be disturbed.
        on_processor: See `OwnWork`.
    """
    per_sample = sorted(s / n for s, n in zip(computed_s, samples, strict=True))
    middle, quarter = median(per_sample), len(per_sample) // 4
    spread = (per_sample[-1 - quarter] - per_sample[quarter]) / middle
    return OwnWork(sum(waited_s) / sum(samples), middle, spread, on_processor)


def rebalance(
    shares: Sequence[int], speeds: Sequence[float], granularity: int = 1, noise: float = 0.0
) -> tuple[tuple[int, ...], float]:
    """New shares for ranks of measured speeds, and the part of the step time they save.

    Where a sample costs a rank the same in any share, the new shares let all ranks end at once.
    Where each step has costs of its own besides, they are nearer to it, never beyond, and the next
    measurement leads on.

    Args:
        shares: Samples of a full step for each rank now.
        speeds: Samples per second that each rank came to with its share; all positive.
        granularity: Shares are whole groups of so many samples.
        noise: How uncertain the speeds are, as a part of them.

    Returns:
        The present shares and 0.0, where others would not be better by more than `LEAST_GAIN` and
        the noise.
    """
    found = in_proportion(sum(shares), speeds, granularity)
    before, after = _longest(shares, speeds), _longest(found, speeds)
    gain = 1.0 - after / before
    return (found, gain) if gain > max(LEAST_GAIN, noise) else (tuple(shares), 0.0)


def in_proportion(total: int, speeds: Sequence[float], granularity: int = 1) -> tuple[int, ...]:
    """Shares as `cut_shares` gives them, but a group at least for every rank: one without samples
    could never show that it has become faster.

    Raises:
        ValueError: If there are fewer groups than ranks.
    """
    if total // granularity < len(speeds):
        raise ValueError(f"{total} samples in groups of {granularity} for {len(speeds)} ranks")
    shares = list(cut_shares(total, speeds, granularity))
    for rank, share in enumerate(shares):
        if share < granularity:
            shares[shares.index(max(shares))] -= granularity
            shares[rank] += granularity
    return cut_shares(total, [share // granularity for share in shares], granularity)


def slow_ranks(devices: Sequence[str], speeds: Sequence[float]) -> Mapping[int, float]:
    """Ranks below `SLOW` of the median speed of the other ranks on devices of the same name.

    Args:
        devices: The name of each rank's device.
        speeds: Samples per second of each rank.

    Returns:
        By rank, its speed as a part of that median.
    """
    parts = {}
    for rank, (device, speed) in enumerate(zip(devices, speeds, strict=True)):
        like = [
            other
            for place, (name, other) in enumerate(zip(devices, speeds, strict=True))
            if name == device and place != rank
        ]
        if like:
            parts[rank] = speed / median(like)
    return {rank: part for rank, part in parts.items() if part < SLOW}


def _longest(shares: Sequence[int], speeds: Sequence[float]) -> float:
    return max(share / speed for share, speed in zip(shares, speeds, strict=True))
