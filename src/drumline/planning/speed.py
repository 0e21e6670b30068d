"""Time of one device's own work in a step: from steps that were timed, or from a profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from drumline.config import Precision
from drumline.planning.profile import AllReduce, DeviceProfile, Figure
from drumline.planning.quantities import data, data_rate, flop, flop_rate, span
from drumline.planning.shares import cut_micro_batches
from drumline.planning.timed_shares import Calibration, Pipeline, pipeline_at
from drumline.planning.workload import Exchange, Workload

BACKWARD = 2 / 3
"""The backward's part of forward plus backward: two matrix products for each of the forward's."""


@dataclass(frozen=True)
class Part:
    """A part of a step's time, with the arithmetic it came from."""

    name: str
    seconds: float
    line: str


@dataclass(frozen=True)
class Work:
    """A device's own work in a step.

    Attributes:
        parts: What it computes.
        remaining_s: As in `SharePoint`.
        pipeline: How reading the samples runs beside that; None where it is among the parts.
    """

    parts: tuple[Part, ...]
    remaining_s: tuple[float, ...]
    pipeline: Pipeline | None = None

    @property
    def seconds(self) -> float:
        """All parts."""
        return sum(part.seconds for part in self.parts)


@dataclass(frozen=True)
class Control:
    """Times of the control plane on one number of ranks, in seconds; see `distributed.control`.

    A vote runs beside the step and costs only what is longer than the step. Metrics are gathered
    every `every_steps` steps while all wait.
    """

    vote_s: float = 0.0
    gather_s: float = 0.0
    every_steps: int = 1


class Speed(Protocol):
    """What the cost model asks: the work of a share, what is sent, and over which links."""

    @property
    def device(self) -> str:
        """Name of the device."""

    @property
    def names(self) -> tuple[str, ...]:
        """All names that the device goes by, for its price."""

    @property
    def source(self) -> str:
        """Where the times come from, in words."""

    @property
    def exchange(self) -> Exchange:
        """What ranks send."""

    @property
    def overlaps(self) -> bool:
        """Whether gradients are sent beside the backward without slowing it."""

    @property
    def steps(self) -> int:
        """Steps of the run."""

    @property
    def gaps(self) -> tuple[str, ...]:
        """What is not known and counts as nothing. With gaps a prediction is a bound from below,
        and no choice is made by it.
        """

    def work(
        self, mode: str, share: int, micro_batch: int, devices: int, held: float = 1.0
    ) -> Work:
        """One device's work in a step with `share` samples while `devices` work, if it holds this
        part of what the optimizer updates.
        """

    def links(self, world_size: int) -> tuple[AllReduce | None, str]:
        """All-reduce figures for a number of ranks, and a note."""

    def control(self, world_size: int) -> Control | None:
        """Times of the control plane; None where they are not known."""


@dataclass(frozen=True)
class CalibratedSpeed:
    """From timed steps; links are measured, or those of a profile."""

    calibration: Calibration
    profile: DeviceProfile
    controls: Mapping[int, Control] = field(default_factory=dict)

    @property
    def device(self) -> str:
        """Name of the device."""
        return self.calibration.device

    @property
    def names(self) -> tuple[str, ...]:
        """The device's, and those of its profile."""
        return (self.device, self.profile.name, *self.profile.matches)

    @property
    def source(self) -> str:
        """Where the times come from."""
        return f"steps timed on one {self.calibration.device}"

    @property
    def exchange(self) -> Exchange:
        """What ranks send."""
        return self.calibration.exchange

    @property
    def overlaps(self) -> bool:
        """On the CPU the exchange takes the cores that the backward needs: nothing is hidden."""
        return self.calibration.kind != "cpu"

    @property
    def steps(self) -> int:
        """Steps of the run."""
        return self.calibration.steps

    @property
    def gaps(self) -> tuple[str, ...]:
        """Links, if more than one device was asked about and nobody knows any."""
        known = self.profile.all_reduce or not self.calibration.distributed
        return () if known else ("the links",)

    def work(
        self, mode: str, share: int, micro_batch: int, devices: int, held: float = 1.0
    ) -> Work:
        """As timed, or between the timed shares on a line; slower beside other devices. The
        optimizer's part was timed whole, and nothing is taken off it.
        """
        del micro_batch, held  # timed with it
        points = self.calibration.points(mode)
        alone = pipeline_at(points, share)
        company = self.calibration.beside.get(devices)
        pipeline = alone if company is None else company.slows(alone)
        near = min(points, key=lambda point: abs(point.samples - share))
        scale = alone.compute_s / near.pipeline().compute_s if near.step_s else 1.0
        how = "timed" if near.samples == share else "on the line between timed shares"
        line = f"{share:,} samples: {span(alone.compute_s)}, {how} with the samples at hand"
        if company is not None:
            line += f"; {span(pipeline.compute_s)} while {devices} work at once"
        remaining = tuple(seconds * scale for seconds in near.remaining_s)
        return Work((Part("compute", pipeline.compute_s, line),), remaining, pipeline)

    def links(self, world_size: int) -> tuple[AllReduce | None, str]:
        """Of the profile."""
        return self.profile.links(world_size)

    def control(self, world_size: int) -> Control | None:
        """As measured; of the nearest number of ranks for one that was not."""
        if not self.controls:
            return None
        return self.controls[min(self.controls, key=lambda size: abs(size - world_size))]


@dataclass(frozen=True)
class ProfiledSpeed:
    """From a traced workload and a profile: a roofline, so a lower bound where figures are peaks.

    A step takes as long as the slowest of matrix products, memory traffic and kernel launches,
    which run beside each other, plus the copy of the samples, which does not.
    """

    workload: Workload
    profile: DeviceProfile
    precision: Precision
    granularity: int = 1
    untraced: tuple[str, ...] = ()

    @property
    def device(self) -> str:
        """Name of the device."""
        return self.profile.name

    @property
    def names(self) -> tuple[str, ...]:
        """Those of the profile."""
        return (self.profile.name, *self.profile.matches)

    @property
    def source(self) -> str:
        """Where the times come from."""
        peaks = [figure for figure in self._figures() if figure and figure.is_datasheet]
        what = "datasheet peaks, so real steps are slower" if peaks else "measured figures"
        return f"a trace of the task and the profile {self.profile.name} ({what})"

    @property
    def exchange(self) -> Exchange:
        """What ranks send."""
        return self.workload.exchange

    @property
    def overlaps(self) -> bool:
        """As for timed steps."""
        return self.profile.kind != "cpu"

    @property
    def steps(self) -> int:
        """Steps of the run."""
        return self.workload.steps

    @property
    def gaps(self) -> tuple[str, ...]:
        """What the profile and the trace leave out."""
        return (*self.profile.gaps(self.precision), *self.untraced)

    def work(
        self, mode: str, share: int, micro_batch: int, devices: int, held: float = 1.0
    ) -> Work:
        """The roofline, by micro-batches."""
        del mode, devices
        passes = len(cut_micro_batches(share, max(1, micro_batch), self.granularity))
        limits = [self._matmul(share), self._memory(share, passes, held), self._launches(passes)]
        slowest = max(limits, key=lambda part: part.seconds)
        parts = [
            part
            if part is slowest
            else Part(part.name, 0.0, f"{part.line}; hidden behind {slowest.name}")
            for part in limits
        ]
        last_pass = slowest.seconds * min(micro_batch, share) / share if share else 0.0
        return Work((*parts, self._copy(share)), self._remaining(BACKWARD * last_pass))

    def links(self, world_size: int) -> tuple[AllReduce | None, str]:
        """Of the profile."""
        return self.profile.links(world_size)

    def control(self, world_size: int) -> Control | None:
        """Not known from a profile."""
        del world_size
        return None

    def _figures(self) -> list[Figure | None]:
        return [self._rate(), self.profile.memory_bytes_per_s]

    def _rate(self) -> Figure | None:
        return self.profile.matmul_flop_per_s.get(self.precision)

    def _matmul(self, share: int) -> Part:
        total = share * self.workload.flop_per_sample
        line = f"{share:,} samples × {flop(self.workload.flop_per_sample)} = {flop(total)}"
        rate = self._rate()
        if rate is None or not rate.value:
            unknown = f"the {self.precision.value} rate is not known and counts as nothing"
            return Part("matmul", 0.0, f"{line}; {unknown}")
        seconds = total / rate.value
        line += f"; / {flop_rate(rate.value)} [{_kind(rate)}] = {span(seconds)}"
        return Part("matmul", seconds, line)

    def _memory(self, share: int, passes: int, held: float) -> Part:
        load = self.workload
        once = held * load.traffic_per_step
        total = share * load.traffic_per_sample + passes * load.traffic_per_pass + once
        line = (
            f"{share:,} samples × {data(load.traffic_per_sample)} + {passes} micro-batches × "
            f"{data(load.traffic_per_pass)} + {data(once)} = {data(total)}"
        )
        rate = self.profile.memory_bytes_per_s
        if rate is None or not rate.value:
            return Part("memory", 0.0, f"{line}; the memory's rate is not known, counts as nothing")
        seconds = total / rate.value
        line += f"; / {data_rate(rate.value)} [{_kind(rate)}] = {span(seconds)}"
        return Part("memory", seconds, line)

    def _launches(self, passes: int) -> Part:
        kernels = passes * self.workload.kernels_per_pass + self.workload.kernels_per_step
        line = (
            f"{passes} micro-batches × {self.workload.kernels_per_pass} + "
            f"{self.workload.kernels_per_step} = {kernels:,} kernels"
        )
        each = self.profile.launch_s
        if each is None:
            return Part("launches", 0.0, f"{line}; launch time not known, counts as nothing")
        seconds = kernels * each.value
        line += f"; × {span(each.value)} [{_kind(each)}] = {span(seconds)}"
        return Part("launches", seconds, line)

    def _copy(self, share: int) -> Part:
        total = share * self.workload.sample_bytes
        line = f"{share:,} samples × {data(self.workload.sample_bytes)} = {data(total)}"
        if self.profile.kind == "cpu":
            return Part("copy", 0.0, f"{line}, read where they are")
        rate = self.profile.host_to_device_bytes_per_s
        if rate is None or not rate.value:
            return Part("copy", 0.0, f"{line}; the copy's rate is not known, counts as nothing")
        seconds = total / rate.value
        line += f"; / {data_rate(rate.value)} [{_kind(rate)}] = {span(seconds)}"
        return Part("copy", seconds, line)

    def _remaining(self, backward_s: float) -> tuple[float, ...]:
        """Gradients come evenly, by bytes, over the backward; the last one at its end."""
        total, seen, found = self.exchange.total_bytes, 0, []
        for size in self.exchange.gradient_bytes:
            seen += size
            found.append(backward_s * (1 - seen / total) if total else 0.0)
        return tuple(found)


def _kind(figure: Figure) -> str:
    return figure.source.partition(":")[0]
