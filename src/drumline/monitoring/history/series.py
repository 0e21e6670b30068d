"""What a range query gives: one time axis, and for each device what was measured along it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from drumline.monitoring.readings import iso

Values = tuple[float | None, ...]


@dataclass(frozen=True)
class Band:
    """Lowest, mean and highest value in each bucket; None where nothing was reported."""

    min: Values
    mean: Values
    max: Values


@dataclass(frozen=True)
class DeviceSeries:
    """One device along the axis of its `Series`. `readings` counts how many are in each bucket."""

    device_uuid: str
    readings: tuple[int, ...]
    memory_total_bytes: Values
    throttle_reasons: tuple[tuple[str, ...] | None, ...]
    metrics: Mapping[str, Band] = field(default_factory=dict)
    """By name: utilization_percent, memory_used_bytes, temperature_c, power_w, sm_clock_mhz,
    memory_clock_mhz."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "device_uuid": self.device_uuid,
            "readings": self.readings,
            "memory_total_bytes": self.memory_total_bytes,
            "throttle_reasons": self.throttle_reasons,
            **{
                name: {"min": band.min, "mean": band.mean, "max": band.max}
                for name, band in self.metrics.items()
            },
        }


@dataclass(frozen=True)
class Series:
    """Devices over one time axis of equal buckets.

    `times_ms` are the begins of the buckets, each `bucket_ms` long. `resolution_s` is that of the
    rows it was read from: 1 for single readings, or the step of a rollup.
    """

    from_ms: int
    to_ms: int
    bucket_ms: int
    resolution_s: int
    times_ms: tuple[int, ...]
    devices: tuple[DeviceSeries, ...]

    @property
    def times(self) -> list[str]:
        """The begins of the buckets in ISO 8601, UTC."""
        return [iso(time_ms) for time_ms in self.times_ms]

    def device(self, uuid: str) -> DeviceSeries:
        """One device's series.

        Raises:
            KeyError: If it was not asked for.
        """
        found = {series.device_uuid: series for series in self.devices}
        return found[uuid]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "from": iso(self.from_ms),
            "to": iso(self.to_ms),
            "bucket_ms": self.bucket_ms,
            "resolution_s": self.resolution_s,
            "times": self.times,
            "devices": [series.as_dict() for series in self.devices],
        }


@dataclass(frozen=True)
class AggregatePoints:
    """One field over all devices: the value in each bucket, and how many devices report it."""

    value: Values
    reporting: tuple[int, ...]


def aggregate_series(series: Series) -> dict[str, AggregatePoints]:
    """Total memory, mean utilization, highest temperature and total power along the axis.

    Totals and the mean are of each device's mean in the bucket, the temperature of its maximum.
    """
    bands = {
        "memory_used_bytes": [d.metrics["memory_used_bytes"].mean for d in series.devices],
        "memory_total_bytes": [d.memory_total_bytes for d in series.devices],
        "utilization_percent": [d.metrics["utilization_percent"].mean for d in series.devices],
        "temperature_c": [d.metrics["temperature_c"].max for d in series.devices],
        "power_w": [d.metrics["power_w"].mean for d in series.devices],
    }
    return {name: _over_devices(name, rows) for name, rows in bands.items()}


def _over_devices(name: str, rows: Sequence[Values]) -> AggregatePoints:
    known = [[value for value in column if value is not None] for column in zip(*rows, strict=True)]
    reporting = tuple(len(column) for column in known)
    if name == "temperature_c":
        return AggregatePoints(tuple(max(c) if c else None for c in known), reporting)
    if name == "utilization_percent":
        return AggregatePoints(tuple(sum(c) / len(c) if c else None for c in known), reporting)
    return AggregatePoints(tuple(sum(c) if c else None for c in known), reporting)
