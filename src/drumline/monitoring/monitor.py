"""One host under watch: samples go to the history, the inventory and the bus.

What a process that samples (the service on one machine, an agent on each of several) starts.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from drumline.database import Database, DatabaseError, now_ms
from drumline.hardware import Machine, Provider
from drumline.monitoring.aggregate import aggregate
from drumline.monitoring.bus import Bus
from drumline.monitoring.history import History
from drumline.monitoring.history.recorder import Recorder
from drumline.monitoring.inventory import Inventory
from drumline.monitoring.readings import Job, iso, readings_of
from drumline.monitoring.sampler import Sample, Sampler

logger = logging.getLogger(__name__)
AGGREGATE = "gpus/aggregate"


def no_job(_uuid: str) -> Job | None:
    """Nobody holds any device."""
    return None


class Monitor:
    """Samples one host's devices until it is stopped.

    Publishes `gpu/{uuid}` (a `Reading` as a dict) for each device and MIG instance, and
    `gpus/aggregate`. Inventory and history are written by threads of their own.

    Args:
        database: Where history and inventory are.
        provider: The devices.
        bus: Where samples are published; None: nowhere.
        every_s: The period.
        host_id: Who this host is; its name by default.
        job_of: Whom a device, by UUID, is leased to. Called for each device at each tick: it must
            answer from memory.
        inventory_every_s: How often the inventory is written, beside at every change of health.
    """

    def __init__(
        self,
        database: Database,
        provider: Provider,
        bus: Bus | None = None,
        *,
        every_s: float = 1.0,
        host_id: str | None = None,
        job_of: Callable[[str], Job | None] = no_job,
        inventory_every_s: float = 5.0,
    ) -> None:
        self._bus = bus
        self._job_of = job_of
        self._inventory = Inventory(database)
        self._host_id = host_id
        self._inventory_every_s = inventory_every_s
        self._recorder = Recorder(History(database, sample_every_s=every_s))
        self.sampler = Sampler(provider, self._take, every_s)
        self._stop = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="drumline-inventory", daemon=True)
        self._changed = threading.Event()
        self._told: object = None
        self.latest: Sample | None = None
        """The last sample; None before the first."""

    @property
    def machine(self) -> Machine | None:
        """The machine at the last sample."""
        return None if self.latest is None else self.latest.machine

    def start(self) -> None:
        """Begin to sample."""
        self._recorder.start()
        self._keeper.start()
        self.sampler.start()

    def stop(self) -> None:
        """End, with everything written."""
        self.sampler.stop()
        self._stop.set()
        self._changed.set()
        self._keeper.join(5)
        self._recorder.stop()

    def _take(self, sample: Sample) -> None:
        self.latest = sample
        readings = readings_of(sample.machine.devices, sample.time_ms, self._job_of)
        self._recorder.put(readings)
        if self._bus is not None:
            for reading in readings:
                self._bus.publish(f"gpu/{reading.device_uuid}", reading.as_dict())
            self._bus.publish(AGGREGATE, _aggregate_message(sample))
        health = [(reading.device_uuid, reading.problem) for reading in readings]
        if health != self._told:
            self._told = health
            self._changed.set()

    def _keep(self) -> None:
        while not self._stop.is_set():
            self._changed.wait(self._inventory_every_s)
            self._changed.clear()
            self._record()

    def _record(self) -> None:
        machine = self.machine
        if machine is None:
            return
        try:
            self._inventory.record(machine, now_ms(), self._host_id)
        except DatabaseError as error:
            logger.warning("The inventory was not written: %s", error)


def _aggregate_message(sample: Sample) -> dict[str, Any]:
    return {
        "time": iso(sample.time_ms),
        "time_ms": sample.time_ms,
        "skipped": sample.skipped,
        "answered": sample.answered,
        "problems": sample.machine.problems,
        **aggregate(sample.machine).as_dict(),
    }
