"""The agent of a GPU host: samples its devices, starts the trainings leased there, and takes back
what a dead supervisor has left.

It keeps nothing that the database does not have: it can be killed and started again at any time,
and trainings go on meanwhile, each under its own supervisor. Looking at the database every few
seconds is what everything rests on; a wake-up (see `jobs.wakeups`) only makes it prompt.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping

from drumline.config.environment import MARK
from drumline.config.service import ServiceSettings
from drumline.database import Database, DatabaseError, now_ms
from drumline.hardware import Machine, choose_provider
from drumline.hardware.device_locks import held_on
from drumline.jobs.claiming import Claim
from drumline.jobs.leases import Leases
from drumline.jobs.outcome import Ending, Outcomes
from drumline.jobs.reclaiming import Reclaimer
from drumline.jobs.states import State
from drumline.jobs.supervisor import Order
from drumline.jobs.trainings import Trainings
from drumline.monitoring.bus import Bus
from drumline.monitoring.inventory import Inventory
from drumline.monitoring.monitor import Monitor
from drumline.monitoring.readings import Job

logger = logging.getLogger(__name__)

Start = Callable[[Order, ServiceSettings], subprocess.Popen[bytes]]


class Agent:
    """One host's agent. `run` in a process of its own, or in a thread of the service.

    Args:
        settings: Of the service.
        database: Migrated.
        bus: Where samples are published; None: nowhere.
        start: Starts a supervisor; for tests.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        database: Database,
        bus: Bus | None = None,
        start: Start | None = None,
    ) -> None:
        self._settings = settings
        self._database = database
        self._start = start or start_supervisor
        self._leases = Leases(database, lease_ms=round(settings.lease_s * 1000))
        self._outcomes = Outcomes(database)
        self._reclaimer = Reclaimer(settings, self._leases, Trainings(database).get)
        self._touch = _Touch(settings.lease_s)
        self._jobs: dict[str, Job] = {}
        self._known_host: str | None = None
        self._children: list[subprocess.Popen[bytes]] = []  # only so that none stays a zombie
        self._woken = threading.Event()
        self.monitor = Monitor(
            database,
            choose_provider(settings.simulate),
            bus,
            every_s=settings.sample_every_s,
            job_of=self._job_of,
        )

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set; `wake` after setting it ends it at once. Trainings go on."""
        self.monitor.start()
        try:
            while not stop.is_set():
                self._guarded_tick()
                self._woken.wait(self._settings.poll_s)
                self._woken.clear()
        finally:
            self.monitor.stop()

    def wake(self) -> None:
        """Look at the database now. May be called from any thread, any number of times."""
        self._woken.set()

    def tick(self) -> None:
        """Look at the database once, and do what is to be done. Never raises for an outage."""
        self._children = [child for child in self._children if child.poll() is None]
        sample = self.monitor.latest
        if sample is None:
            return
        try:
            host_id = self._introduce(sample.machine)
            held = self._leases.held()
            self._jobs = {uuid: Job(device.training_id) for uuid, device in held.items()}
            if self._touch.made():
                self._reclaimer.take_back(host_id)
            if sample.answered:
                self._start_all(host_id, sample.machine, held_on(sample.machine))
        except DatabaseError as error:
            self._touch.lost()
            logger.warning("%s", error)

    def _guarded_tick(self) -> None:
        """A fault in one look must not end the agent."""
        try:
            self.tick()
        except Exception:
            logger.exception("A look at the database failed.")

    def _introduce(self, machine: Machine) -> str:
        """The host's id, once it is in the database."""
        if self._known_host is None:
            host_id = machine.host.hostname[:64]
            Inventory(self._database).record(machine, now_ms(), host_id)
            self._known_host = host_id
        return self._known_host

    def _start_all(self, host_id: str, machine: Machine, locked: Mapping[str, object]) -> None:
        while (claim := self._leases.claim(host_id, machine, locked)) is not None:
            order = Order(claim.training.id, claim.attempt, claim.token, claim.gpu_ids)
            try:
                self._children.append(self._start(order, self._settings))
            except OSError as error:
                self._return(claim, error)
                return

    def _return(self, claim: Claim, error: OSError) -> None:
        reason = f"its supervisor could not be started: {error.strerror or error}"
        logger.error("Training %s: %s", claim.training.id, reason)
        self._outcomes.finish(claim.token, Ending(State.QUEUED, "not_started", reason))

    def _job_of(self, uuid: str) -> Job | None:
        return self._jobs.get(uuid)


class _Touch:
    """Whether the database has been in reach without a break for as long as a lease holds.

    Before that a lease that ran out may belong to a supervisor that had no database either, and
    has not come to renew it. The same holds after this machine has slept.
    """

    def __init__(self, needed_s: float) -> None:
        self._needed_s = needed_s
        self._since_s: float | None = None
        self._last_s = time.time()

    def made(self) -> bool:
        """The database has answered."""
        now_s = time.time()
        if self._since_s is None or not -1 < now_s - self._last_s < self._needed_s:
            self._since_s = now_s
        self._last_s = now_s
        return now_s - self._since_s >= self._needed_s

    def lost(self) -> None:
        """The database has not answered."""
        self._since_s = None


def start_supervisor(order: Order, settings: ServiceSettings) -> subprocess.Popen[bytes]:
    """A supervisor in a session of its own, which outlives this process.

    Raises:
        OSError: If it cannot be started.
    """
    log = settings.home / "supervisors.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "drumline.jobs.supervisor"],
            env={**os.environ, MARK: order.mark},
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    assert process.stdin is not None
    with process.stdin:  # not arguments, which all users can read
        process.stdin.write(order.as_json(settings).encode())
    return process
