"""One look of an agent at the database, without processes."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from drumline.config.service import ServiceSettings
from drumline.database import open_database
from drumline.jobs import agent as module
from drumline.jobs.agent import Agent, _Touch
from drumline.jobs.leases import Leases
from drumline.jobs.states import State
from drumline.jobs.supervisor import Order
from drumline.jobs.training import Request
from drumline.jobs.trainings import Trainings

CONFIG = {"task": {"name": "sae", "activations": "x.npy", "latents": 8, "k": 2}, "steps": 1}


class Looking:
    """An agent of a simulated host that looks when told; what it starts is noted."""

    def __init__(self, url: str, folder: Path) -> None:
        self.settings = ServiceSettings(
            home=folder, database_url=url, simulate="4xH100", lease_s=0.05
        )
        self.database = open_database(url)
        self.trainings = Trainings(self.database)
        self.leases = Leases(self.database)
        self.orders: list[Order] = []
        self.fails = False
        self.agent = Agent(self.settings, self.database, start=self._start)

    def _start(self, order: Order, settings: ServiceSettings) -> subprocess.Popen[bytes]:
        if self.fails:
            raise OSError(11, "Resource temporarily unavailable")
        self.orders.append(order)
        return subprocess.Popen(["true"])

    def queue(self, gpus: int) -> str:
        return self.trainings.create(Request(CONFIG, owner="ann", gpus=gpus, max_attempts=1)).id

    def look(self) -> None:
        self.agent.tick()


@pytest.fixture
def looking(database_url: str, tmp_path: Path) -> Iterator[Looking]:
    made = Looking(database_url, tmp_path)
    made.agent.monitor.start()
    try:
        while made.agent.monitor.latest is None:
            time.sleep(0.01)
        yield made
    finally:
        made.agent.monitor.stop()
        made.database.close()


def test_all_that_fits_is_started_at_once_each_with_its_devices(looking: Looking) -> None:
    ids = [looking.queue(gpus) for gpus in (2, 1, 2, 1)]
    looking.look()
    assert [order.training_id for order in looking.orders] == [ids[0], ids[1], ids[3]]
    uuids = [uuid for order in looking.orders for uuid in order.gpu_ids]
    assert len(uuids) == len(set(uuids)) == 4
    assert looking.trainings.get(ids[2]).state is State.QUEUED
    assert sorted(looking.leases.held()) == sorted(uuids)


def test_a_supervisor_that_cannot_be_started_gives_its_devices_back_and_says_why(
    looking: Looking,
) -> None:
    looking.fails = True
    training_id = looking.queue(4)
    looking.look()
    training = looking.trainings.get(training_id)
    assert training.state is State.FAILED, "its one attempt is used up"
    assert "Resource temporarily unavailable" in (training.verdict or "")
    assert looking.leases.held() == {}


def test_an_order_reaches_the_supervisor_whole() -> None:
    order = Order("abc", 3, "secret", ("GPU-a", "GPU-b"))
    settings = ServiceSettings(database_url="postgresql://u:p@h/d", lease_s=7)
    read, told = Order.read(order.as_json(settings))
    assert read == order
    assert (told.database_url, told.lease_s) == ("postgresql://u:p@h/d", 7)
    assert order.mark == "abc/3"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the wall clock of the agent."""

    class Clock:
        now = 1000.0

        def time(self) -> float:
            return self.now

    clock: Any = Clock()
    monkeypatch.setattr(module, "time", clock)

    def to(now: float) -> None:
        clock.now = now

    return to


def test_leases_are_taken_back_only_after_the_database_was_in_reach_for_as_long_as_one_holds(
    clock: Callable[[float], None],
) -> None:
    touch = _Touch(30)
    seen = {}
    for now in (1000, 1010, 1029, 1031):
        clock(now)
        seen[now] = touch.made()
    assert seen == {1000: False, 1010: False, 1029: False, 1031: True}
    touch.lost()
    clock(1040)
    assert not touch.made(), "an outage: supervisors had no database either"
    clock(1069)
    assert not touch.made()
    clock(1071)
    assert touch.made()
    clock(1102)
    assert not touch.made(), "the machine has slept, and supervisors have, too"
