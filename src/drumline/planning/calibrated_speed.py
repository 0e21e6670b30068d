"""Time of a device's own work in a step, from steps that were timed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from drumline.planning.profile import AllReduce, DeviceProfile
from drumline.planning.quantities import span
from drumline.planning.speed import Control, Part, Work
from drumline.planning.timed_shares import Calibration, pipeline_at
from drumline.planning.workload import Exchange


@dataclass(frozen=True)
class CalibratedSpeed:
    """From timed steps; links are measured, or those of a profile.

    Attributes:
        calibration: The steps.
        profile: The device with its links.
        controls: The control plane, by the number of ranks it was timed on.
        unexplained_s: What whole steps took beyond what the other parts add up to, by the number
            of devices; negative where the parts say too much.
    """

    calibration: Calibration
    profile: DeviceProfile
    controls: Mapping[int, Control] = field(default_factory=dict)
    unexplained_s: Mapping[int, float] = field(default_factory=dict)

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

    def together(self, world_size: int) -> tuple[Part, ...]:
        """As timed; between the timed numbers of devices in proportion to a rank's peers, and no
        more on more.
        """
        known = {1: 0.0, **self.unexplained_s}
        if world_size == 1 or len(known) == 1:
            return ()
        above = min((count for count in known if count >= world_size), default=max(known))
        below = max(count for count in known if count <= world_size)
        part = (world_size - below) / (above - below) if above > below else 0.0
        seconds = known[below] + part * (known[above] - known[below])
        whole_s = self.calibration.whole[above].step_s
        line = (
            f"whole steps on {above} took {span(whole_s)}, and all of the above adds up to "
            f"{span(whole_s - known[above])} there"
        )
        if world_size < above:
            line += f"; {world_size - below}/{above - below} of the way from {below}"
        return (Part("together", seconds, line),)
