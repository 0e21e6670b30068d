"""One line for many devices: totals, means and maxima, each with how many devices report it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from drumline.hardware import Device, Machine


@dataclass(frozen=True)
class Reported:
    """A value over those of `devices` that report it; None where none does."""

    value: float | None
    reporting: int
    devices: int

    @property
    def words(self) -> str:
        """How many report it, as "7 of 8"."""
        return f"{self.reporting} of {self.devices}"

    @classmethod
    def over(
        cls, values: Sequence[float | None], combine: Callable[[list[float]], float]
    ) -> Reported:
        """`combine` of the values that are not None."""
        known = [value for value in values if value is not None]
        return cls(combine(known) if known else None, len(known), len(values))


@dataclass(frozen=True)
class Aggregate:
    """All devices together. `devices` counts the lost ones too, which report nothing."""

    devices: int
    lost: int
    memory_used_bytes: Reported
    memory_total_bytes: Reported
    utilization_percent: Reported
    temperature_c: Reported
    power_w: Reported

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON: each field with `value`, `reporting` and `devices`."""
        return asdict(self)


def aggregate(devices: Machine | Iterable[Device]) -> Aggregate:
    """Total memory, mean utilization, highest temperature and total power of `devices`.

    A device split by MIG counts once. Its memory is its own where it reports it, else that of its
    instances, if all of them do.
    """
    found = devices.devices if isinstance(devices, Machine) else tuple(devices)
    there = [None if device.lost else device for device in found]

    def field(name: str, combine: Callable[[list[float]], float]) -> Reported:
        values = [None if device is None else _value(device, name) for device in there]
        return Reported.over(values, combine)

    return Aggregate(
        len(found),
        there.count(None),
        field("memory_used_bytes", sum),
        field("memory_total_bytes", sum),
        field("utilization_percent", fmean),
        field("temperature_c", max),
        field("power_w", sum),
    )


def _value(device: Device, name: str) -> float | None:
    value: float | None = getattr(device, name)
    if value is None and name.startswith("memory") and device.mig_instances:
        parts = [getattr(instance, name) for instance in device.mig_instances]
        return None if None in parts else sum(parts)
    return value
