"""Watches over one attempt of a training from its start to the return of its devices.

The agent starts it detached, in a session of its own, and hands it an order on standard input:
`python -m drumline.jobs.supervisor`. From then on it needs nobody: without the agent or the service
it goes on; without the database, too, and it brings everything up to date when that is back. What
it writes is guarded by the attempt's token, and when the token counts no more it ends its processes
and itself, as another may have its devices.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from types import FrameType
from typing import TypeVar

from drumline.config.environment import MARK
from drumline.config.service import ServiceSettings
from drumline.database import Database, DatabaseError, open_database
from drumline.errors import DrumlineError
from drumline.events import EventReader
from drumline.jobs.copying import Copier
from drumline.jobs.endings import ending_of
from drumline.jobs.errors import LeaseLost
from drumline.jobs.launching import devices_of, mark_of, prepare, run_path, start_launcher
from drumline.jobs.leases import Leases
from drumline.jobs.outcome import Ending, Outcomes
from drumline.jobs.processes import adopt_orphans, end_all, reap, started_at
from drumline.jobs.reports import Reports
from drumline.jobs.returning import memory_has_fallen
from drumline.jobs.states import State
from drumline.jobs.training import Training
from drumline.jobs.trainings import Trainings
from drumline.run_directory import RunDirectory

logger = logging.getLogger(__name__)
T = TypeVar("T")

_TICK_S = 0.2
_COPY_EVERY_S = 1.0
_MEMORY_PATIENCE_S = 120.0
"""A device whose memory has not fallen by then is given back as it is: whoever holds the memory is
none of ours, and the device counts as in use.
"""


@dataclass(frozen=True)
class Order:
    """What the agent hands over."""

    training_id: str
    number: int
    token: str
    gpu_ids: tuple[str, ...]

    @property
    def mark(self) -> str:
        """What the processes of this attempt carry."""
        return mark_of(self.training_id, self.number)

    def as_json(self, settings: ServiceSettings) -> str:
        """The order and the settings of whoever gives it, for standard input."""
        return json.dumps({"order": asdict(self), "settings": settings.model_dump(mode="json")})

    @classmethod
    def read(cls, text: str) -> tuple[Order, ServiceSettings]:
        """From standard input."""
        told = json.loads(text)
        order = told["order"]
        return cls(**{**order, "gpu_ids": tuple(order["gpu_ids"])}), ServiceSettings(
            **told["settings"]
        )


class Supervisor:
    """One attempt. `run` returns when its devices are given back, or are not its own any more."""

    def __init__(self, settings: ServiceSettings, database: Database, order: Order) -> None:
        self._settings, self._order = settings, order
        self._leases = Leases(database, lease_ms=round(settings.lease_s * 1000))
        self._outcomes = Outcomes(database)
        self._reports = Reports(database)
        self._trainings = Trainings(database)
        self._launcher: subprocess.Popen[bytes] | None = None
        self._copier: Copier | None = None
        self._stop_since_s: float | None = None
        self._beat_s = self._copied_s = float("-inf")
        self._is_pausing = False
        self._wanted: str | None = None
        self._shutdown = threading.Event()

    def run(self) -> None:
        """Supervise the attempt to its end."""
        try:
            ending = self._attempt()
            self._finish(ending)
        except LeaseLost:
            logger.warning("The lease is lost: the attempt's processes are ended.")
        finally:
            self._end_processes()

    def stop(self) -> None:
        """Have the training save and stop, as the machine is going down; it will be resumed."""
        self._shutdown.set()

    def _attempt(self) -> Ending:
        training = self._insist(lambda: self._trainings.get(self._order.training_id))
        path = run_path(training.run_dir, self._settings.run_root, training.name)
        self._insist(
            lambda: self._outcomes.starting(
                self._order.token,
                process_id=os.getpid(),
                process_started=started_at(os.getpid()),
                run_dir=str(path),
            )
        )
        self._heartbeat()
        if self._wanted or self._shutdown.is_set():
            return Ending(State.QUEUED, "stopped", "stopped before it started")
        if training.step and not path.is_dir():
            verdict = f"its run directory {path} is not on this host; share the folder, or retry"
            return Ending(State.FAILED, "no_run_directory", verdict)
        try:
            run = prepare(path, training.config, self._order.gpu_ids)
            self._launch(run, training)
        except (DrumlineError, OSError) as error:
            return Ending(State.FAILED, "failed", str(error))
        self._watch()
        assert self._launcher is not None
        return ending_of(self._launcher.returncode, run)

    def _launch(self, run: RunDirectory, training: Training) -> None:
        _log_to(run)
        reader = EventReader(run.events_path, training.events_offset)
        self._copier = Copier(reader, self._reports, self._outcomes, self._order.token)
        devices = devices_of(training.config, self._order.gpu_ids)
        self._launcher = start_launcher(run, devices, self._settings, self._order.mark)

    def _watch(self) -> None:
        """Until the launcher has ended and none of its processes is left."""
        assert self._launcher is not None
        while self._launcher.poll() is None:
            self._heartbeat()
            self._copy()
            self._ask_to_stop()
            reap(besides={self._launcher.pid})
            time.sleep(_TICK_S)
        self._end_processes()
        self._copy(now=True)

    def _heartbeat(self) -> None:
        now_s = time.monotonic()
        if now_s - self._beat_s < self._settings.heartbeat_s:
            return
        self._beat_s = now_s
        beat = self._try(lambda: self._leases.heartbeat(self._order.token))
        if beat is not None and beat.stop is not None:
            self._wanted = beat.stop

    def _ask_to_stop(self) -> None:
        """Once politely; a training that has not stopped after the grace is killed."""
        assert self._launcher is not None
        if self._wanted is None and not self._shutdown.is_set():
            return
        now_s = time.monotonic()
        if self._stop_since_s is None:
            self._stop_since_s = now_s
            self._launcher.send_signal(signal.SIGTERM)
        if now_s - self._stop_since_s > self._settings.stop_grace_s:
            logger.warning("It has not stopped in time and is killed.")
            self._end_processes()
        if self._copier is not None and self._copier.is_running and not self._is_pausing:
            self._is_pausing = self._try(self._tell_pausing) is not None

    def _tell_pausing(self) -> bool:
        self._outcomes.pausing(self._order.token)
        return True

    def _copy(self, *, now: bool = False) -> None:
        """Bring new events to the database; at the end, `now`, all of them."""
        now_s = time.monotonic()
        if self._copier is None or (now_s - self._copied_s < _COPY_EVERY_S and not now):
            return
        self._copied_s = now_s
        attempt = self._insist if now else self._try
        while attempt(self._copier.bring):  # after an outage there may be much
            self._heartbeat()

    def _finish(self, ending: Ending) -> None:
        """Write the outcome when no process is left, and give the devices back when they are free
        of what those held.
        """
        token, gpu_ids = self._order.token, self._order.gpu_ids
        free = given = memory_has_fallen(self._settings.simulate, gpu_ids)
        state = self._insist(lambda: self._outcomes.finish(token, ending, release=given))
        logger.info("The training is %s: %s", state, ending.verdict)
        deadline_s = time.monotonic() + _MEMORY_PATIENCE_S
        while not free and time.monotonic() < deadline_s:
            self._heartbeat()
            time.sleep(1)
            free = memory_has_fallen(self._settings.simulate, gpu_ids)
        if not given:
            self._insist(lambda: self._leases.release(token))

    def _end_processes(self) -> None:
        """Kill all that the attempt has started, and wait until it is gone, however long."""
        while not end_all(self._order.mark, besides={os.getpid()}):
            logger.warning("Processes of the attempt do not end; they are waited for.")
            with suppress(LeaseLost):
                self._heartbeat()

    def _try(self, action: Callable[[], T]) -> T | None:
        """The action's value; None where the database is away.

        Raises:
            LeaseLost: If the token counts no more.
        """
        try:
            return action()
        except DatabaseError as error:
            logger.warning("%s", error)
            return None

    def _insist(self, action: Callable[[], T]) -> T:
        """The action's value, however long the database is away.

        Raises:
            LeaseLost: If the token counts no more.
        """
        pause_s = _TICK_S
        while True:
            try:
                return action()
            except DatabaseError as error:
                logger.warning("%s", error)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, self._settings.heartbeat_s)


def _log_to(run: RunDirectory) -> None:
    """What the supervisor says goes beside the logs of the ranks."""
    handler = logging.FileHandler(run.logs_path / "supervisor.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.getLogger().addHandler(handler)


def main() -> None:
    """Take the order from standard input and supervise."""
    text = sys.stdin.read()
    if not text:  # the agent died before it could hand the order over
        return
    order, settings = Order.read(text)
    assert os.environ.get(MARK) == order.mark, "the agent marks its supervisors"
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    adopt_orphans()
    supervisor = Supervisor(settings, open_database(settings.database), order)

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        supervisor.stop()

    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, on_signal)
    supervisor.run()


if __name__ == "__main__":
    main()
