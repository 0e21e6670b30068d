"""What one training step costs, apart from the device it runs on.

A `Workload` is counted from a trace of the task and needs a `DeviceProfile` to become a time; steps
that were timed are in `timed_shares`. Both say what ranks have to exchange.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

FIRST_BUCKET_BYTES = 2**20
"""DDP's first bucket is small, so that the first exchange starts early (torch's default)."""


@dataclass(frozen=True)
class Exchange:
    """What ranks send to each other in a step.

    Attributes:
        gradient_bytes: Size of each gradient that is summed, or of several small ones that travel
            together, in the order in which the backward finishes them.
        blocking_bytes: Size of each small sum that a step waits for: the loss, the norm and what
            the task must know globally.
        bucket_bytes: Bound on DDP's buckets.
        unit_bytes: Size of the trained weights of each unit that a sharded mode gathers, in the
            order of the forward; last what is in no unit.
    """

    gradient_bytes: tuple[int, ...] = ()
    blocking_bytes: tuple[int, ...] = ()
    bucket_bytes: int = 25 * 2**20
    unit_bytes: tuple[int, ...] = ()

    @property
    def units(self) -> tuple[int, ...]:
        """`unit_bytes`; one unit of all where they are not known."""
        return self.unit_bytes or (self.total_bytes,)

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


def exchange_from_dict(values: Mapping[str, Any]) -> Exchange:
    """The plain data of an exchange, after a way through JSON."""
    return Exchange(
        tuple(values["gradient_bytes"]),
        tuple(values["blocking_bytes"]),
        values["bucket_bytes"],
        tuple(values.get("unit_bytes", ())),
    )
