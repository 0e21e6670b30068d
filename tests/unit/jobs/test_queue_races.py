"""Users, agents and supervisors act at the same time, each in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier

import pytest

from drumline.database.tables import gpu_leases
from drumline.hardware import Machine
from drumline.jobs.errors import LeaseLost, WrongState
from drumline.jobs.queue import Rules
from drumline.jobs.states import ACTIVE, State
from queue_cases import DONE, LEASE_MS, Service, service_at

MACHINE = Machine.probe(simulate="8xH100")
CARDS = ("H100", "A100", "H200", "L4")


@pytest.fixture
def service(database_url: str) -> Iterator[Service]:
    with service_at(database_url, rules=Rules(hold_back_ms=0)) as made:
        made.add_host(MACHINE)
        yield made


def at_once(*acts: Callable[[], object]) -> list[object]:
    """Results of all, begun together; an error of the queue is a result."""
    together = Barrier(len(acts))

    def run(act: Callable[[], object]) -> object:
        together.wait()
        try:
            return act()
        except (LeaseLost, WrongState) as error:
            return error

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(run, acts))


def leased(service: Service) -> set[str]:
    with service.database.reading() as connection:
        return set(connection.execute(gpu_leases.select()).scalars())


def test_a_cancel_and_a_claim_at_once_leave_no_lease_without_a_training(service: Service) -> None:
    for _ in range(10):
        training_id = service.ask(2)
        claim, _ = at_once(
            lambda: service.leases.claim("h", MACHINE),
            lambda training_id=training_id: service.trainings.cancel(training_id),
        )
        training = service.trainings.get(training_id)
        if claim is None:
            assert training.state is State.CANCELLED
            assert leased(service) == set()
            continue
        assert (training.state, training.stop_request) == (State.LEASED, "cancel")
        assert len(leased(service)) == 2
        token = claim.token  # type: ignore[attr-defined]
        service.outcomes.starting(token)
        service.outcomes.finish(token, DONE)


def test_a_heartbeat_and_a_sweep_at_once_agree_on_who_has_the_lease(service: Service) -> None:
    for _ in range(10):
        training_id = service.ask()
        claim = service.leases.claim("h", MACHINE)
        assert claim is not None
        service.clock.now += LEASE_MS
        token = claim.token
        beat, _ = at_once(
            lambda token=token: service.leases.heartbeat(token), service.leases.expired
        )
        marked = service.leases.expired()
        assert isinstance(beat, LeaseLost) == bool(marked)
        if marked:
            service.leases.reclaim(marked[0].id)
            assert service.trainings.cancel(training_id).state is State.CANCELLED
        else:
            service.outcomes.starting(token)
            service.outcomes.finish(token, DONE)


def test_an_end_and_a_taking_back_at_once_end_it_once(service: Service) -> None:
    for _ in range(10):
        training_id = service.ask()
        claim = service.leases.claim("h", MACHINE)
        assert claim is not None
        service.outcomes.starting(claim.token)
        service.clock.now += LEASE_MS
        token = claim.token

        def take_back() -> list[State | None]:
            return [service.leases.reclaim(a.id) for a in service.leases.expired()]

        finished, *taken = at_once(
            lambda token=token: service.outcomes.finish(token, DONE), take_back, take_back
        )
        states = [state for each in taken for state in each if state]  # type: ignore[attr-defined]
        assert len(states) == (0 if finished is State.SUCCEEDED else 1)
        expected = State.SUCCEEDED if finished is State.SUCCEEDED else State.QUEUED
        assert service.state(training_id) is expected
        assert leased(service) == set()
        if expected is State.QUEUED:
            service.trainings.cancel(training_id)


def test_many_hosts_hold_back_and_claim_at_once(service: Service) -> None:
    """Large and small ones, four hosts, users that cancel: nothing fails, nothing is lost."""
    machines = {f"h{n}": Machine.probe(simulate=f"4x{card}") for n, card in enumerate(CARDS)}
    for host, machine in machines.items():
        service.add_host(machine, host)
    ids = [service.ask(4 if n % 3 == 0 else 1) for n in range(30)]

    def look(host: str) -> Callable[[], int]:
        def run() -> int:
            many = 0
            for _ in range(30):
                claim = service.leases.claim(host, machines[host])
                if claim is not None:
                    service.outcomes.starting(claim.token)
                    service.outcomes.finish(claim.token, DONE)
                    many += 1
            return many

        return run

    def cancel() -> None:
        for training_id in ids[::5]:
            with suppress(WrongState):  # it has ended before
                service.trainings.cancel(training_id)

    results = at_once(*(look(host) for host in machines), cancel)
    assert not [each for each in results if isinstance(each, Exception)]
    states = [service.state(training_id) for training_id in ids]
    assert not set(states) & ACTIVE
    assert set(states) <= {State.SUCCEEDED, State.CANCELLED}
    assert leased(service) == set()
