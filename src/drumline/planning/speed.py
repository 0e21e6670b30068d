"""What the cost model asks of a device, its links and its host.

Answered from steps that were timed (`calibrated_speed`) or from a profile (`profiled_speed`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from drumline.planning.profile import AllReduce
from drumline.planning.timed_shares import Pipeline
from drumline.planning.workload import Exchange


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

    def together(self, world_size: int) -> tuple[Part, ...]:
        """What replicas at work together take beyond all other parts, where that was timed."""
