"""An agent with all that runs beside it: wake-ups, and the periodic work on the database."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from drumline.config.service import ServiceSettings
from drumline.database import Database, DatabaseError, now_ms, open_database
from drumline.database.migrate import upgrade
from drumline.jobs import wakeups
from drumline.jobs.agent import Agent
from drumline.monitoring.bus import Bus
from drumline.monitoring.history import History

logger = logging.getLogger(__name__)

ROLL_UP_EVERY_S, CLEAN_UP_EVERY_S = 10.0, 60.0
BATCHES = 20
"""Of cleaning at a time, so that the task stays short; what is left is for the next."""


class Running:
    """What `beside` has started."""

    def __init__(self, agent: Agent, sender: wakeups.Sender) -> None:
        self.agent, self._sender = agent, sender

    def wake(self) -> None:
        """Have all agents look at the database soon; returns at once, whatever the broker does."""
        self.agent.wake()
        self._sender.wake()


@contextmanager
def beside(
    settings: ServiceSettings, database: Database, bus: Bus | None = None
) -> Iterator[Running]:
    """An agent and its wake-ups in threads of this process, within the context.

    Args:
        settings: Of the service.
        database: Migrated.
        bus: Where the agent publishes its samples; None: nowhere.
    """
    stop = threading.Event()
    agent = Agent(settings, database, bus)
    app = wakeups.make_app(settings.broker_url)
    worker = wakeups.Worker(app, tasks(settings, database, agent.wake), periods(settings))
    sender = wakeups.Sender(app)
    thread = threading.Thread(target=agent.run, args=(stop,), name="drumline-agent", daemon=True)
    worker.start()
    thread.start()
    try:
        yield Running(agent, sender)
    finally:
        stop.set()
        agent.wake()
        thread.join()
        sender.stop()
        worker.stop()


def run_agent(stop: threading.Event, settings: ServiceSettings | None = None) -> None:
    """Be the agent of this host until `stop` is set.

    Raises:
        DatabaseError: If the database was written by a newer version.
    """
    settings = settings or ServiceSettings()
    database = open_database(settings.database)
    if not _migrated(database, stop):
        return
    with beside(settings, database):
        logger.info("The agent looks for trainings in %s.", database.url)
        stop.wait()
    database.close()


def tasks(
    settings: ServiceSettings, database: Database, wake: Callable[[], Any]
) -> Mapping[str, Callable[[], Any]]:
    """What each task does in a process, by its name.

    Args:
        settings: Of the service.
        database: Migrated.
        wake: Of the agent in this process.
    """
    history = History(database, sample_every_s=settings.sample_every_s)
    return {
        wakeups.WAKE: wake,
        wakeups.SWEEP: wake,
        wakeups.HOST_HEARTBEAT: wake,
        wakeups.ROLL_UP: lambda: history.roll_up(now_ms()),
        wakeups.CLEAN_UP: lambda: history.clean_up(now_ms(), settings, batches=BATCHES),
    }


def periods(settings: ServiceSettings) -> Mapping[str, float]:
    """How often each task is due, in seconds."""
    return {
        wakeups.SWEEP: settings.lease_s / 2,
        wakeups.HOST_HEARTBEAT: settings.lease_s / 2,
        wakeups.ROLL_UP: ROLL_UP_EVERY_S,
        wakeups.CLEAN_UP: CLEAN_UP_EVERY_S,
    }


def _migrated(database: Database, stop: threading.Event) -> bool:
    """Whether the database is up to date; one that is away is waited for."""
    while not stop.is_set():
        try:
            upgrade(database)
        except DatabaseError as error:
            if "revision" in error.values:
                raise
            logger.warning("%s", error)
            stop.wait(2)
        else:
            return True
    return False
