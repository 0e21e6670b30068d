"""The watch looks at a real database, and has told what is wrong there."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from drumline.config.service import ServiceSettings
from drumline.database import DatabaseError
from drumline.errors import BadInput
from drumline.hardware import Machine
from drumline.monitoring.inventory import Inventory
from drumline.server.watch import Watch
from queue_cases import DONE, Service, service_at

MACHINE = Machine.probe(simulate="2xH100")
NOW = 1_700_000_000_000


@pytest.fixture
def service(database_url: str) -> Iterator[Service]:
    with service_at(database_url) as made:
        made.clock.now = NOW
        yield made


@pytest.fixture
def watch(service: Service, tmp_path: Path) -> Iterator[Watch]:
    settings = ServiceSettings(run_root=tmp_path)
    made = Watch(settings, service.database, service.clock)
    made.start()
    yield made
    made.stop()


def looks(watch: Watch, service: Service, machine: Machine, count: int) -> None:
    """So many looks ten seconds apart, with the host heard of at each."""
    for _ in range(count):
        service.clock.now += 10_000
        Inventory(service.database).record(machine, service.clock.now, "h")
        watch.look()


def test_hot_and_lost_devices(
    watch: Watch, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    cool = replace(MACHINE, devices=tuple(replace(d, temperature_c=50.0) for d in MACHINE.devices))
    first, second = cool.devices
    hot = replace(cool, devices=(replace(first, temperature_c=95.0), second.as_lost("fell off")))
    looks(watch, service, cool, 3)
    assert watch.open == 0
    looks(watch, service, hot, 5)
    assert watch.open == 2
    looks(watch, service, cool, 5)
    assert watch.open == 0
    watch.stop()
    told = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert [line.split(":")[0] for line in told] == [
        "Alert raised (device_lost)",
        "Alert raised (temperature)",
        "Alert resolved (device_lost)",
        "Alert resolved (temperature)",
    ]
    assert "GPU 0 (NVIDIA H100" in told[1]
    assert watch.failed == 0


def test_a_host_that_goes_silent_and_comes_back(watch: Watch, service: Service) -> None:
    looks(watch, service, MACHINE, 1)
    for _ in range(10):
        service.clock.now += 10_000
        watch.look()
    assert watch.open == 1
    looks(watch, service, MACHINE, 4)
    assert watch.open == 0


def test_a_training_that_makes_no_step_until_it_ends(watch: Watch, service: Service) -> None:
    looks(watch, service, MACHINE, 1)
    service.ask(1)
    claim = service.leases.claim("h", MACHINE)
    assert claim is not None
    service.outcomes.starting(claim.token, run_dir="/r", process_id=1, process_started=1.0)
    service.outcomes.running(claim.token, world_size=1, steps=8)
    looks(watch, service, MACHINE, 89)
    assert watch.open == 0
    looks(watch, service, MACHINE, 5)
    assert watch.open == 1
    service.outcomes.finish(claim.token, DONE)
    looks(watch, service, MACHINE, 1)
    assert watch.open == 0


def test_a_database_that_is_down_ends_nothing(
    watch: Watch, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise DatabaseError("The database does not answer.")

    looks(watch, service, replace(MACHINE, devices=(MACHINE.devices[0].as_lost("off"),)), 3)
    before = watch.open
    assert before
    with monkeypatch.context() as broken:
        broken.setattr(service.database, "reading", fail)
        watch.look()
    assert watch.open == before


def test_an_address_that_cannot_be_used_is_refused_at_the_start(service: Service) -> None:
    with pytest.raises(BadInput, match="DRUMLINE_ALERT_WEBHOOK"):
        Watch(ServiceSettings(alert_webhook="nowhere"), service.database)
