"""A service's database with one host, a clock that a test moves, and the shortest config."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from drumline.database import Database, open_database
from drumline.database.tables import devices, hosts
from drumline.hardware import Machine
from drumline.jobs.leases import Leases
from drumline.jobs.outcome import Ending, Outcomes
from drumline.jobs.queue import Rules
from drumline.jobs.states import State
from drumline.jobs.training import Request
from drumline.jobs.trainings import Trainings

CONFIG: dict[str, Any] = {"steps": 8, "task": {"name": "sae", "activations": "somewhere"}}
LEASE_MS = 30_000
DONE = Ending(State.SUCCEEDED, "done", "all steps done", 0)
BROKEN = Ending(State.FAILED, "failed", "rank 1 died", 1)


@dataclass
class Clock:
    """Milliseconds, moved by hand."""

    now: int = 1_000_000

    def __call__(self) -> int:
        return self.now


@dataclass
class Service:
    """All parts that work on one database."""

    database: Database
    clock: Clock = field(default_factory=Clock)
    rules: Rules = field(default_factory=Rules)

    def __post_init__(self) -> None:
        self.trainings = Trainings(self.database, self.clock)
        self.outcomes = Outcomes(self.database, self.clock)
        self.leases = Leases(self.database, lease_ms=LEASE_MS, rules=self.rules, clock=self.clock)

    def add_host(self, machine: Machine, host_id: str = "h") -> None:
        """Enter a host and its devices."""
        seen = {"first_seen_ms": 0, "last_seen_ms": 0}
        with self.database.writing() as connection:
            host = {"id": host_id, "name": host_id, "inventory": {}, **seen}
            connection.execute(sa.insert(hosts).values(**host))
            for device in machine.devices:
                row = {
                    "uuid": device.uuid,
                    "host_id": host_id,
                    "index": device.index,
                    "name": device.name,
                    "simulated": device.simulated,
                    **seen,
                }
                connection.execute(sa.insert(devices).values(**row))

    def ask(self, gpus: int | str = 1, **keys: Any) -> str:
        """The id of a new training; each asked a little later than the one before."""
        self.clock.now += 1
        request = Request(CONFIG, gpus=gpus, **keys)  # type: ignore[arg-type]
        return self.trainings.create(request).id

    def state(self, training_id: str) -> State:
        """The state a training is in."""
        return self.trainings.get(training_id).state


@contextmanager
def service_at(url: str, **keys: Any) -> Iterator[Service]:
    """A service on this database."""
    database = open_database(url)
    try:
        yield Service(database, **keys)
    finally:
        database.close()
