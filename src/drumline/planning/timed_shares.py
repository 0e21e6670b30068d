"""Steps that were timed on a device, what they are made of, and what shares in between would take.

A step reads samples and computes. Where samples are read ahead, the two run beside each other, and
what takes longer sets the pace; so what more devices add (sending gradients) costs nothing while
the device would otherwise wait for samples. Reading, computing and whole steps are timed apart, and
how far they overlap follows from the three.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from drumline.planning.workload import Exchange, exchange_from_dict


@dataclass(frozen=True)
class SharePoint:
    """Steps timed on one device with one share of the global batch, all in a steady state.

    Attributes:
        samples: The share.
        step_s: Time of a whole step, as the Trainer takes it.
        data_s: Time to read the samples of a step, with nothing else to do.
        compute_s: Time of a step whose samples are there already; by default all of it.
        remaining_s: For each of `Exchange.gradient_bytes`, how long the backward still ran once all
            of it was there: the time that sending it can hide in.
    """

    samples: int
    step_s: float
    data_s: float = 0.0
    compute_s: float | None = None
    remaining_s: tuple[float, ...] = ()

    def pipeline(self) -> Pipeline:
        """The step taken apart. Neither part counts as longer than the whole step."""
        data = min(self.data_s, self.step_s)
        compute = min(self.step_s if self.compute_s is None else self.compute_s, self.step_s)
        shorter = min(data, compute)
        both = data + compute
        hidden = min(1.0, max(0.0, (both - self.step_s) / shorter)) if shorter else 1.0
        return Pipeline(data, compute, hidden, max(0.0, self.step_s - both))


@dataclass(frozen=True)
class Pipeline:
    """Reading and computing beside each other.

    Attributes:
        data_s: Reading the samples of a step.
        compute_s: Computing with them.
        hidden: Part of the shorter of the two that runs beside the longer one.
        rest_s: What a step takes beyond both, one after the other.
    """

    data_s: float
    compute_s: float
    hidden: float = 1.0
    rest_s: float = 0.0

    def step_s(self, more_s: float = 0.0) -> float:
        """Time of a step that computes or waits for `more_s` more."""
        compute = self.compute_s + more_s
        return self.data_s + compute - self.hidden * min(self.data_s, compute) + self.rest_s


@dataclass(frozen=True)
class Beside:
    """The same share timed on one device alone, and on several at once without any exchange."""

    alone: SharePoint
    beside: SharePoint

    def slows(self, pipeline: Pipeline) -> Pipeline:
        """The pipeline of a device while the others work: they share the host's cores and memory,
        so that reading is slower, and less of it may run beside the computing.
        """
        together = self.beside.pipeline()
        return Pipeline(
            pipeline.data_s * _ratio(self.beside.data_s, self.alone.data_s),
            pipeline.compute_s * _ratio(_compute_s(self.beside), _compute_s(self.alone)),
            together.hidden,
            max(pipeline.rest_s, together.rest_s),
        )

    def times(self, factor: float) -> Beside:
        """With `beside` slower by a factor, for more devices that share the same cores."""
        slower = replace(
            self.beside,
            step_s=self.beside.step_s * factor,
            data_s=self.beside.data_s * factor,
            compute_s=_compute_s(self.beside) * factor,
        )
        return Beside(self.alone, slower)


@dataclass(frozen=True)
class Calibration:
    """Real steps of a config on one device, by mode.

    `distributed` points come from DDP with a single rank: they hold all that DDP costs a rank
    apart from sending and from waiting for others. By number of devices are `beside`, and `whole`:
    real steps on all of them, which say what the parts leave out.
    """

    device: str
    kind: str
    none: tuple[SharePoint, ...]
    distributed: tuple[SharePoint, ...]
    exchange: Exchange
    steps: int
    beside: Mapping[int, Beside]
    whole: Mapping[int, SharePoint] = field(default_factory=dict)

    def points(self, mode: str) -> tuple[SharePoint, ...]:
        """The points of a mode, or of the other if it has none; ascending by samples."""
        chosen = self.none if mode == "none" else self.distributed
        return tuple(sorted(chosen or self.none or self.distributed, key=lambda p: p.samples))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Calibration:
        """The plain data of a calibration, after a way through JSON."""
        made = dict(values)
        for mode in ("none", "distributed"):
            made[mode] = tuple(map(point_from_dict, values[mode]))
        made["exchange"] = exchange_from_dict(values["exchange"])
        made["beside"] = {
            int(count): Beside(point_from_dict(pair["alone"]), point_from_dict(pair["beside"]))
            for count, pair in values["beside"].items()
        }
        whole = values.get("whole", {})
        made["whole"] = {int(count): point_from_dict(point) for count, point in whole.items()}
        return cls(**made)


def point_from_dict(values: Mapping[str, Any]) -> SharePoint:
    """The plain data of a point, after a way through JSON."""
    return SharePoint(**{**values, "remaining_s": tuple(values["remaining_s"])})


def pipeline_at(points: Sequence[SharePoint], samples: int) -> Pipeline:
    """A step with `samples`: each part on a line between the points around it, overlapping as in
    the nearest point.
    """
    parts = {point.samples: point.pipeline() for point in points}
    near = min(parts, key=lambda timed: abs(timed - samples))
    if near == samples:
        return parts[near]

    def at(part: str) -> float:
        return time_at([(size, getattr(parts[size], part)) for size in parts], samples)

    return Pipeline(at("data_s"), at("compute_s"), parts[near].hidden, at("rest_s"))


def fit_line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """(a, b) of time = a + b * samples through (samples, time) by least squares, neither below 0.

    Raises:
        ValueError: If there are no points.
    """
    if not points:
        raise ValueError("there are no points to fit")
    count = len(points)
    mean_x = sum(x for x, _ in points) / count
    mean_y = sum(y for _, y in points) / count
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if spread == 0:
        return 0.0, mean_y / mean_x
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    if slope <= 0:
        return mean_y, 0.0
    intercept = mean_y - slope * mean_x
    if intercept >= 0:
        return intercept, slope
    return 0.0, sum(x * y for x, y in points) / sum(x**2 for x, _ in points)


def time_at(points: Sequence[tuple[int, float]], samples: int) -> float:
    """Time with `samples`: on a line between the two (samples, time) around it.

    A smaller share is never slower than a larger one, whatever the noise said; beyond the points
    the fitted line's slope goes on. Below the smallest point that slope is scaled, so that the
    time cannot become negative.
    """
    ordered = sorted(points)
    sizes, times = [size for size, _ in ordered], [seconds for _, seconds in ordered]
    for place in range(len(times) - 2, -1, -1):
        times[place] = min(times[place], times[place + 1])
    if samples <= sizes[0]:
        intercept, slope = fit_line(ordered)
        modelled = intercept + slope * sizes[0]
        return times[0] * (intercept + slope * samples) / modelled if modelled else times[0]
    for place in range(1, len(sizes)):
        left, right = sizes[place - 1], sizes[place]
        if samples <= right:
            part = (samples - left) / (right - left) if right > left else 1.0
            return times[place - 1] + part * (times[place] - times[place - 1])
    return times[-1] + fit_line(ordered)[1] * (samples - sizes[-1])


def _compute_s(point: SharePoint) -> float:
    return point.step_s if point.compute_s is None else point.compute_s


def _ratio(beside_s: float, alone_s: float) -> float:
    """How much slower; company never makes anything faster."""
    return max(1.0, beside_s / alone_s) if alone_s else 1.0
