"""What one training step costs, apart from the device it runs on.

A `Workload` is counted from a trace of the task and needs a `DeviceProfile` to become a time. A
`Calibration` holds steps that were really timed on a device. Both say what ranks have to exchange.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

FIRST_BUCKET_BYTES = 2**20
"""DDP's first bucket is small, so that the first exchange starts early (torch's default)."""


@dataclass(frozen=True)
class Exchange:
    """What ranks send to each other in a step.

    Attributes:
        gradient_bytes: Size of each gradient that is summed, in the order in which the backward
            finishes them.
        blocking_bytes: Size of each small sum that a step waits for: whether the gradient is
            finite, and what the task must know globally.
        bucket_bytes: Bound on DDP's buckets.
    """

    gradient_bytes: tuple[int, ...] = ()
    blocking_bytes: tuple[int, ...] = ()
    bucket_bytes: int = 25 * 2**20

    @property
    def total_bytes(self) -> int:
        """Gradients of one step."""
        return sum(self.gradient_bytes)

    def buckets(self) -> list[list[int]]:
        """Places in `gradient_bytes` by bucket: each is closed once it has reached its bound."""
        found: list[list[int]] = []
        current: list[int] = []
        size, bound = 0, FIRST_BUCKET_BYTES
        for place, gradient in enumerate(self.gradient_bytes):
            current.append(place)
            size += gradient
            if size >= bound:
                found.append(current)
                current, size, bound = [], 0, self.bucket_bytes
        return [*found, current] if current else found


@dataclass(frozen=True)
class Workload:
    """Counts of one step of a config, from a trace.

    Attributes:
        flop_per_sample: Matrix products of forward and backward.
        traffic_per_sample, traffic_per_pass, traffic_per_step: Bytes that kernels read and write:
            for each sample, for each micro-batch, and once a step (norm, optimizer).
        kernels_per_pass, kernels_per_step: Launches, likewise.
        sample_bytes: What a sample brings from host to device.
        parameters: Trained parameters.
        steps: Steps of the whole run.
        exchange: What ranks send.
        method: How it was traced, in words.
    """

    flop_per_sample: float
    traffic_per_sample: float
    traffic_per_pass: float
    traffic_per_step: float
    kernels_per_pass: int
    kernels_per_step: int
    sample_bytes: float
    parameters: int
    steps: int
    exchange: Exchange
    method: str = "traced"

    def as_dict(self) -> dict[str, Any]:
        """The counts as plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Workload:
        """What `as_dict` gave, after a way through JSON."""
        return cls(**{**values, "exchange": exchange_from_dict(values["exchange"])})


@dataclass(frozen=True)
class SharePoint:
    """Steps timed on one device with one share of the global batch.

    Attributes:
        samples: The share.
        step_s: Median time of a whole step, data loading in it.
        data_s: Of that, the time in which the data was fetched.
        remaining_s: For each gradient of the exchange, how long the backward still ran once it was
            there: the time that sending it can hide in.
    """

    samples: int
    step_s: float
    data_s: float = 0.0
    remaining_s: tuple[float, ...] = ()


@dataclass(frozen=True)
class Calibration:
    """Real steps of a config on one device, by mode.

    `distributed` points come from DDP with a single rank: they hold all that DDP costs a rank
    apart from waiting for others. `slowdown` is by how much a device gets slower when others of
    the machine work, too, by number of devices: 1 where each is a device of its own.
    """

    device: str
    kind: str
    none: tuple[SharePoint, ...]
    distributed: tuple[SharePoint, ...]
    exchange: Exchange
    steps: int
    slowdown: Mapping[int, float]

    def points(self, mode: str) -> tuple[SharePoint, ...]:
        """The points of a mode, or of the other if it has none; ascending by samples."""
        chosen = self.none if mode == "none" else self.distributed
        return tuple(sorted(chosen or self.none or self.distributed, key=lambda p: p.samples))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Calibration:
        """The plain data of a calibration, after a way through JSON."""
        made = dict(values)
        for mode in ("none", "distributed"):
            made[mode] = tuple(
                SharePoint(**{**point, "remaining_s": tuple(point["remaining_s"])})
                for point in values[mode]
            )
        made["exchange"] = exchange_from_dict(values["exchange"])
        made["slowdown"] = {int(key): float(value) for key, value in values["slowdown"].items()}
        return cls(**made)


def exchange_from_dict(values: Mapping[str, Any]) -> Exchange:
    """The plain data of an exchange, after a way through JSON."""
    return Exchange(
        tuple(values["gradient_bytes"]), tuple(values["blocking_bytes"]), values["bucket_bytes"]
    )


def fit_line(points: Sequence[SharePoint]) -> tuple[float, float]:
    """(a, b) of time = a + b * samples by least squares, neither below 0.

    Raises:
        ValueError: If there are no points.
    """
    if not points:
        raise ValueError("there are no points to fit")
    count = len(points)
    mean_x = sum(p.samples for p in points) / count
    mean_y = sum(p.step_s for p in points) / count
    spread = sum((p.samples - mean_x) ** 2 for p in points)
    if spread == 0:
        return 0.0, mean_y / mean_x
    slope = sum((p.samples - mean_x) * (p.step_s - mean_y) for p in points) / spread
    if slope <= 0:
        return mean_y, 0.0
    intercept = mean_y - slope * mean_x
    if intercept >= 0:
        return intercept, slope
    return 0.0, sum(p.samples * p.step_s for p in points) / sum(p.samples**2 for p in points)


def time_at(points: Sequence[SharePoint], samples: int) -> float:
    """Time of a step with `samples`: on a line between the two points around it.

    A smaller share is never slower than a larger one, whatever the noise said; beyond the points
    the fitted line's slope goes on. Below the smallest point that slope is scaled, so that the
    time cannot become negative.
    """
    ordered = sorted(points, key=lambda p: p.samples)
    times = [p.step_s for p in ordered]
    for place in range(len(times) - 2, -1, -1):
        times[place] = min(times[place], times[place + 1])
    if samples <= ordered[0].samples:
        intercept, slope = fit_line(ordered)
        modelled = intercept + slope * ordered[0].samples
        return times[0] * (intercept + slope * samples) / modelled if modelled else times[0]
    for place in range(1, len(ordered)):
        left, right = ordered[place - 1].samples, ordered[place].samples
        if samples <= right:
            part = (samples - left) / (right - left) if right > left else 1.0
            return times[place - 1] + part * (times[place] - times[place - 1])
    return times[-1] + fit_line(ordered)[1] * (samples - ordered[-1].samples)
