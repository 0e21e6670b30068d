"""Time of a device's own work in a step, from a traced workload and a profile of the card."""

from __future__ import annotations

from dataclasses import dataclass

from drumline.config import Precision
from drumline.planning.profile import AllReduce, DeviceProfile, Figure
from drumline.planning.quantities import data, data_rate, flop, flop_rate, span
from drumline.planning.shares import cut_micro_batches
from drumline.planning.speed import Control, Part, Work
from drumline.planning.workload import Exchange, Workload

BACKWARD = 2 / 3
"""The backward's part of forward plus backward: two matrix products for each of the forward's."""


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

    def together(self, world_size: int) -> tuple[Part, ...]:
        """Not known from a profile."""
        del world_size
        return ()

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
