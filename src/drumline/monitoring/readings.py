"""One reading of one device: what the history keeps and the live channels send.

A field that a device does not report is None, never 0. Reading devices is the work of
`hardware.providers`, keeping readings that of `monitoring.history`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from drumline.hardware import Device
from drumline.hardware.providers.nvidia_fields import THROTTLE_WORDS

THROTTLE_BITS = {word: bit for bit, word in THROTTLE_WORDS.items()}
"""The bits that stand for throttle reasons in the history: those of NVML."""


@dataclass(frozen=True)
class Job:
    """Whom a device is leased to: a training's id, and the kind of work ("training", ...)."""

    id: str
    type: str = "training"


@dataclass(frozen=True)
class Reading:
    """One device at one moment. `problem` and `lost` are not kept in the history."""

    device_uuid: str
    time_ms: int
    utilization_percent: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttle_reasons: tuple[str, ...] | None = None
    job: Job | None = None
    lost: bool = False
    problem: str | None = None

    @classmethod
    def of(cls, device: Device, time_ms: int, job: Job | None = None) -> Reading:
        """The reading that a device's fields make."""
        return cls(
            device.uuid,
            time_ms,
            device.utilization_percent,
            device.memory_used_bytes,
            None if device.lost else device.memory_total_bytes,
            device.temperature_c,
            device.power_w,
            device.sm_clock_mhz,
            device.memory_clock_mhz,
            device.throttle_reasons,
            job,
            device.lost,
            device.problem,
        )

    @property
    def tells_something(self) -> bool:
        """Whether any sensor was reported; a reading of nothing is a gap."""
        return any(
            value is not None
            for value in (
                self.utilization_percent,
                self.memory_used_bytes,
                self.temperature_c,
                self.power_w,
                self.sm_clock_mhz,
                self.memory_clock_mhz,
                self.throttle_reasons,
            )
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON, with the time in ISO 8601 UTC as `time`."""
        return {**asdict(self), "time": iso(self.time_ms)}


def readings_of(
    devices: Iterable[Device],
    time_ms: int,
    job_of: Callable[[str], Job | None] = lambda _uuid: None,
) -> list[Reading]:
    """A reading of each device, and of each MIG instance of a device that is split."""
    units = [unit for device in devices for unit in (device, *device.mig_instances)]
    return [Reading.of(unit, time_ms, job_of(unit.uuid)) for unit in units]


def throttle_bits(words: Iterable[str] | None) -> int | None:
    """Throttle reasons as one number; a word without a bit is left out."""
    if words is None:
        return None
    return sum({THROTTLE_BITS.get(word, 0) for word in words})


@lru_cache(maxsize=4096)
def throttle_words(bits: float | None) -> tuple[str, ...] | None:
    """The throttle reasons of a number."""
    if bits is None:
        return None
    return tuple(word for bit, word in THROTTLE_WORDS.items() if int(bits) & bit)


def iso(time_ms: int) -> str:
    """Milliseconds since 1970 as ISO 8601 in UTC: "2026-01-31T12:00:00.000Z"."""
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
