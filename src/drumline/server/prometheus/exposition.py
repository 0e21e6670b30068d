"""The page that Prometheus reads, made anew at each scrape from what is known then.

A database that does not answer makes `drumline_database_up` 0 and leaves out what it holds; the
page is there all the same. Making it reads the database, so it belongs on a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from drumline.database import Database, DatabaseError, now_ms
from drumline.hardware import Device
from drumline.monitoring.current import read_current
from drumline.monitoring.inventory import HostView, Inventory
from drumline.server.prometheus.devices import device_samples, host_samples
from drumline.server.prometheus.trainings import training_samples


@dataclass(frozen=True)
class Health:
    """How the parts of this process are doing. None: there is no such part here."""

    live_clients: int = 0
    live_channels: int = 0
    sampler_late_ticks: int | None = None
    alerts_open: int | None = None
    alerts_failed: int | None = None


class Exposition:
    """The samples of one service, in a registry of its own.

    Args:
        database: What it knows of hosts, devices and trainings.
        health: What this process knows of itself.
        clock: The wall clock in milliseconds.
    """

    def __init__(
        self,
        database: Database,
        health: Callable[[], Health] = Health,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Samples(database, health, clock))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def page(self, accept: str = "") -> tuple[bytes, str]:
        """The page and its content type, in the format that the header Accept prefers."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


class _Samples(Collector):
    def __init__(
        self, database: Database, health: Callable[[], Health], clock: Callable[[], int]
    ) -> None:
        self._database, self._health, self._clock = database, health, clock

    def collect(self) -> Iterator[Metric]:
        yield from _own(self._health())
        try:
            stored = self._stored()
        except DatabaseError:
            yield GaugeMetricFamily("drumline_database_up", _DATABASE, value=0)
            return
        yield GaugeMetricFamily("drumline_database_up", _DATABASE, value=1)
        yield from stored

    def _stored(self) -> list[Metric]:
        now = self._clock()
        hosts = Inventory(self._database).machines()
        devices = _of_hosts(hosts, read_current(self._database, now, hosts).devices)
        samples = [*host_samples(hosts, now), *device_samples(devices)]
        with self._database.reading() as connection:
            return [*samples, *training_samples(connection, now)]


_DATABASE = "1 if the database answers."


def _of_hosts(hosts: list[HostView], devices: tuple[Device, ...]) -> list[tuple[str, Device]]:
    """Each device with the id of its host; they are in the order of the hosts."""
    names = [host.id for host in hosts for _ in host.machine.devices]
    return list(zip(names, devices, strict=True))


def _own(health: Health) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "drumline_live_clients", "WebSocket connections.", value=health.live_clients
    )
    yield GaugeMetricFamily(
        "drumline_live_channels", "Channels with a state.", value=health.live_channels
    )
    if health.sampler_late_ticks is not None:
        yield CounterMetricFamily(
            "drumline_sampler_late_ticks",
            "Samples that were skipped as the driver or the service was late.",
            value=health.sampler_late_ticks,
        )
    if health.alerts_open is not None:
        yield GaugeMetricFamily(
            "drumline_alerts_open", "Incidents that are not over.", value=health.alerts_open
        )
    if health.alerts_failed is not None:
        yield CounterMetricFamily(
            "drumline_alerts_undelivered",
            "Alerts that were given up.",
            value=health.alerts_failed,
        )
