"""Looks at hosts, devices, trainings and the disk every few seconds, and has told what is wrong.

One thread of its own: a database or a disk that hangs delays alerts and nothing else. What is wrong
and when it is told is `monitoring.alerts`'. Incidents are in memory: one that lasts over a restart
of the service is told again.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator, Sequence

import sqlalchemy as sa

from drumline.config.service import ServiceSettings
from drumline.database import Database, DatabaseError, now_ms
from drumline.database.tables import trainings
from drumline.jobs.states import State
from drumline.monitoring.alerts import Courier, Incidents, Reading, TrainingProgress, couriers
from drumline.monitoring.alerts.rules import of_devices, of_disk, of_host, of_trainings
from drumline.monitoring.current import read_current
from drumline.monitoring.inventory import Inventory

logger = logging.getLogger(__name__)
EVERY_S = 10.0


class Watch:
    """Alerts of one service, from `start` to `stop`.

    Args:
        settings: Where alerts go, and the folder whose disk is looked at.
        database: Where everything else is.
        clock: The wall clock in milliseconds.

    Raises:
        BadInput: If an address that alerts are to go to cannot be used.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        database: Database,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._settings = settings
        self._database = database
        self._clock = clock
        self._incidents = Incidents()
        self._couriers: Sequence[Courier] = couriers(settings)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="drumline-watch", daemon=True)

    @property
    def open(self) -> int:
        """How many incidents are not over."""
        return len(self._incidents.open)

    @property
    def failed(self) -> int:
        """How many alerts were given up."""
        return sum(courier.failed for courier in self._couriers)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """End; what waits to be delivered has a few seconds."""
        self._stop.set()
        self._thread.join(1.0)
        for courier in self._couriers:
            courier.close(2.0)

    def look(self) -> None:
        """Look once, and have told what is new."""
        now = self._clock()
        try:
            readings = list(self._readings(now))
        except DatabaseError as error:
            logger.warning("Nothing was looked at for alerts: %s", error)
            return
        alerts = self._incidents.judge(readings, now)
        for courier in self._couriers:
            courier.send(alerts)

    def _run(self) -> None:
        while not self._stop.wait(EVERY_S):
            try:
                self.look()
            except Exception:  # the watch must outlive what it stumbles over
                logger.exception("A look for alerts failed")

    def _readings(self, now: int) -> Iterator[Reading]:
        hosts = Inventory(self._database).machines()
        devices = iter(read_current(self._database, now, hosts).devices)
        for host in hosts:
            yield of_host(host.id, host.name, host.last_seen_ms, now)
            yield from of_devices(host.name, [next(devices) for _ in host.machine.devices])
        yield from of_trainings(self._running(), now)
        yield from of_disk(socket.gethostname(), self._settings.run_root)

    def _running(self) -> list[TrainingProgress]:
        c = trainings.c
        since = sa.func.coalesce(c.progress_ms, c.started_ms, c.changed_ms).label("since_ms")
        query = sa.select(c.id, c.name, since).where(c.state == State.RUNNING.value)
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        return [TrainingProgress(row.id, row.name, row.since_ms) for row in rows]
