"""Samples of hosts and devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from drumline.hardware import Device
from drumline.monitoring.current import SILENT_S
from drumline.monitoring.inventory import HostView

LABELS = ("host", "gpu", "uuid", "name")


@dataclass(frozen=True)
class Field:
    """One family: its name, what it says, and how a device's value is read; None: not reported."""

    name: str
    says: str
    value: Callable[[Device], float | None]
    counts: bool = False


def _scaled(name: str, factor: float) -> Callable[[Device], float | None]:
    def value(device: Device) -> float | None:
        found: float | None = getattr(device, name)
        return None if found is None else found * factor

    return value


def _throttled(device: Device) -> float | None:
    return None if device.throttle_reasons is None else float(bool(device.slowed_by))


FIELDS = (
    Field("memory_used_bytes", "Memory in use", _scaled("memory_used_bytes", 1)),
    Field("memory_total_bytes", "Memory", _scaled("memory_total_bytes", 1)),
    Field(
        "utilization_ratio",
        "Share of time in which the device did any work",
        _scaled("utilization_percent", 0.01),
    ),
    Field("temperature_celsius", "Temperature", _scaled("temperature_c", 1)),
    Field("power_watts", "Power drawn", _scaled("power_w", 1)),
    Field("power_limit_watts", "Power that may be drawn", _scaled("power_limit_w", 1)),
    Field("sm_clock_hertz", "Clock of the cores", _scaled("sm_clock_mhz", 1e6)),
    Field("memory_clock_hertz", "Clock of the memory", _scaled("memory_clock_mhz", 1e6)),
    Field("throttled", "1 if the device runs slower than it could", _throttled),
    Field("lost", "1 if the device cannot be reached", lambda device: float(device.lost)),
    Field(
        "ecc_corrected_errors",
        "Memory errors corrected since the driver was loaded",
        _scaled("ecc_corrected", 1),
        counts=True,
    ),
    Field(
        "ecc_uncorrected_errors",
        "Memory errors not corrected since the driver was loaded",
        _scaled("ecc_uncorrected", 1),
        counts=True,
    ),
)


def device_samples(devices: Iterable[tuple[str, Device]]) -> Iterator[Metric]:
    """Families of all devices and MIG instances, each with the id of its host.

    A lost device says only that it is lost.
    """
    units = [(host, label, unit) for host, device in devices for label, unit in _units(device)]
    for field in FIELDS:
        family = (CounterMetricFamily if field.counts else GaugeMetricFamily)(
            f"drumline_gpu_{field.name}", f"{field.says}.", labels=LABELS
        )
        for host, label, unit in units:
            value = field.value(unit)
            if value is not None and (field.name == "lost" or not unit.lost):
                family.add_metric([host, label, unit.uuid, unit.name or ""], value)
        yield family


def _units(device: Device) -> Iterator[tuple[str, Device]]:
    yield str(device.index), device
    for instance in device.mig_instances:
        yield f"{device.index}.{instance.index}", instance


def host_samples(hosts: Sequence[HostView], now_ms: int) -> Iterator[Metric]:
    """Which hosts are heard of."""
    up = GaugeMetricFamily(
        "drumline_host_up", f"1 if its agent was heard of within {SILENT_S:.0f} s.", labels=["host"]
    )
    seen = GaugeMetricFamily(
        "drumline_host_last_seen_timestamp_seconds",
        "When its agent was heard of last.",
        labels=["host"],
    )
    problem = GaugeMetricFamily(
        "drumline_host_problem", "1 if its devices, or some, cannot be read.", labels=["host"]
    )
    for host in hosts:
        up.add_metric([host.id], float(host.age_s(now_ms) <= SILENT_S))
        seen.add_metric([host.id], host.last_seen_ms / 1000)
        problem.add_metric([host.id], float(host.problem is not None))
    yield from (up, seen, problem)
