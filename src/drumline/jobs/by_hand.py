"""A run started by hand, entered in the service of its machine: it holds leases there beside its
lock files, and is in the list by its run directory.

The service is asked once, before the run starts, so that a training that has been given a device
and has not locked it yet is seen. From then on a thread keeps the lease and copies what the run
reports, and nothing that becomes of the service disturbs the run: the lock files hold its devices.
"""

from __future__ import annotations

import getpass
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from drumline.config import RunConfig
from drumline.config.service import ServiceSettings
from drumline.database import Database, DatabaseError, now_ms, open_database
from drumline.events import EventReader
from drumline.hardware import Machine
from drumline.jobs.claiming import Claim
from drumline.jobs.copying import Copier
from drumline.jobs.endings import ending_found
from drumline.jobs.errors import DeviceTaken, LeaseLost
from drumline.jobs.leases import Leases
from drumline.jobs.outcome import Ending, Outcomes
from drumline.jobs.processes import started_at
from drumline.jobs.reports import Reports
from drumline.jobs.states import State
from drumline.jobs.training import Request
from drumline.monitoring.inventory import Inventory
from drumline.run_directory import RunDirectory

logger = logging.getLogger(__name__)

_END_S = 15.0
"""How long the end of a run waits until the service knows of it; its agent finds out later, too."""


@contextmanager
def entered(
    config: RunConfig, machine: Machine, gpu_ids: Sequence[str], run_path: Path
) -> Iterator[None]:
    """Enter a run in the service, for as long as the context lasts.

    Args:
        config: Its config.
        machine: This machine.
        gpu_ids: The devices it has chosen.
        run_path: Its run directory.

    Raises:
        DeviceTaken: If one of the devices is leased, or kept back by an operator.
    """
    try:
        settings = ServiceSettings()
        database = open_database(settings.database)
        claim = _claim(settings, database, machine, _request(config, run_path), gpu_ids)
    except DeviceTaken:
        raise
    except Exception as error:  # whatever is wrong with a service, a run must not die of it
        logger.warning("The run is not in the service's list: %s", error)
        yield
        return
    entry = _Entry(settings, database, claim, run_path)
    try:
        yield
    finally:
        entry.end()
        database.close()


def _request(config: RunConfig, run_path: Path) -> Request:
    try:
        owner = getpass.getuser()
    except (OSError, KeyError):
        owner = str(os.getuid())
    return Request(
        config.model_dump(mode="json"), owner=owner, name=config.name, run_dir=str(run_path)
    )


def _claim(
    settings: ServiceSettings,
    database: Database,
    machine: Machine,
    request: Request,
    gpu_ids: Sequence[str],
) -> Claim:
    host_id = machine.host.hostname[:64]
    Inventory(database).record(machine, now_ms(), host_id)
    return _leases(settings, database).take(request, host_id, gpu_ids)


def _leases(settings: ServiceSettings, database: Database) -> Leases:
    return Leases(database, lease_ms=round(settings.lease_s * 1000))


class _Entry:
    """Keeps a run's lease, brings its events, and writes how it ended."""

    def __init__(
        self, settings: ServiceSettings, database: Database, claim: Claim, run_path: Path
    ) -> None:
        self._every_s, self._claim, self._run_path = settings.heartbeat_s, claim, run_path
        self._leases, self._outcomes = _leases(settings, database), Outcomes(database)
        reader = EventReader(RunDirectory(run_path).events_path)
        self._copier = Copier(reader, Reports(database), self._outcomes, claim.token)
        self._since_ms = now_ms()
        self._is_known = self._is_stopped = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="drumline-entry", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Write how the run ended. A service that is away is not waited for long."""
        self._over.set()
        self._thread.join(_END_S)

    def _keep(self) -> None:
        try:
            self._try(self._report)
            while not self._over.wait(self._every_s):
                self._try(self._report)
            self._try(self._report)
            self._try(lambda: self._outcomes.finish(self._claim.token, self._ending()))
        except LeaseLost:
            logger.warning("The service has given this run up; its devices stay locked by file.")
        except Exception as error:
            logger.warning("The run is not followed by the service any more: %s", error)

    def _report(self) -> None:
        if not self._is_known:
            self._outcomes.starting(
                self._claim.token,
                process_id=os.getpid(),
                process_started=started_at(os.getpid()),
                run_dir=str(self._run_path),
            )
            self._is_known = True
        stop = self._leases.heartbeat(self._claim.token).stop
        if stop is not None and not self._is_stopped:
            self._is_stopped = True
            os.kill(os.getpid(), signal.SIGTERM)  # as from a terminal: it saves and stops
        while self._copier.bring():
            self._leases.heartbeat(self._claim.token)

    def _ending(self) -> Ending:
        found = ending_found(str(self._run_path), self._since_ms)
        if found is not None:
            return found
        result = RunDirectory(self._run_path).result() or {}
        if result.get("status") == "stopped":
            verdict = f"stopped on request; drumline train --resume {self._run_path} goes on"
            return Ending(State.CANCELLED, "stopped", verdict)
        return Ending(State.FAILED, "failed", "it ended without a result")

    def _try(self, action: Callable[[], object]) -> None:
        with suppress(DatabaseError):  # the next beat tries again
            action()
