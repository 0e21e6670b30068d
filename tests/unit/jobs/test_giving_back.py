"""A device is given back when the attempt's processes are gone and its memory has fallen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from drumline.config.service import ServiceSettings
from drumline.hardware import GpuProcess, Machine
from drumline.jobs import returning, supervisor
from drumline.jobs.states import State
from drumline.jobs.supervisor import Order, Supervisor
from queue_cases import DONE, Service, service_at

GIB = 2**30
IDLE = Machine.probe(simulate="2xH100")
UUID = IDLE.devices[0].uuid


def with_first(**fields: object) -> Machine:
    """The machine with its first device changed."""
    return replace(IDLE, devices=(replace(IDLE.devices[0], **fields), *IDLE.devices[1:]))  # type: ignore[arg-type]


SEEN = with_first(processes=(GpuProcess(7, memory_bytes=9 * GIB),), memory_used_bytes=9 * GIB)
UNSEEN = with_first(processes=(), memory_used_bytes=9 * GIB)
LOST = with_first(lost=True, processes=None, memory_used_bytes=None)
SILENT = with_first(processes=None, memory_used_bytes=None)


@pytest.mark.parametrize(
    ("machine", "fallen"),
    [(IDLE, True), (SEEN, False), (UNSEEN, False), (LOST, True), (SILENT, True)],
    ids=["idle", "a process", "one not seen", "lost", "silent"],
)
def test_memory_that_somebody_holds_has_not_fallen(
    monkeypatch: pytest.MonkeyPatch, machine: Machine, fallen: bool
) -> None:
    monkeypatch.setattr(returning.Machine, "probe", lambda: machine)
    assert returning.memory_has_fallen("", [UUID]) is fallen
    assert returning.memory_has_fallen("", [IDLE.devices[1].uuid]), "another device's memory"


@pytest.fixture
def service(sqlite_url: str) -> Iterator[Service]:
    with service_at(sqlite_url) as made:
        made.add_host(IDLE)
        yield made


@pytest.mark.parametrize("looks", [1, 3])
def test_the_lease_holds_until_the_memory_has_fallen(
    service: Service, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    """The outcome is written at once; nobody else gets the device before its memory is free."""
    training = service.ask(gpus=1)
    claim = service.leases.claim("h", IDLE)
    assert claim is not None
    service.outcomes.starting(claim.token, process_id=1, process_started=1.0, run_dir="/run")
    service.outcomes.running(claim.token, world_size=1)
    order = Order(training, claim.attempt, claim.token, claim.gpu_ids)
    watched = Supervisor(ServiceSettings(), service.database, order)
    waiting = service.ask(gpu_ids=claim.gpu_ids)
    seen: list[tuple[bool, State]] = []

    def look(_simulate: str, gpu_ids: tuple[str, ...]) -> bool:
        seen.append((set(gpu_ids) <= set(service.leases.held()), service.state(training)))
        assert service.leases.claim("h", IDLE) is None, "the device is still somebody's"
        return len(seen) == looks

    monkeypatch.setattr(supervisor, "memory_has_fallen", look)
    monkeypatch.setattr(supervisor.time, "sleep", lambda _s: None)
    watched._finish(DONE)
    told = [State.RUNNING, *[State.SUCCEEDED] * (looks - 1)]
    assert seen == [(True, state) for state in told]
    assert service.state(training) is State.SUCCEEDED
    assert service.leases.held() == {}
    after = service.leases.claim("h", IDLE)
    assert after is not None and after.training.id == waiting
