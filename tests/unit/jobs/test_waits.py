"""Why trainings wait and when they may start, on plain data and from a database."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from drumline.hardware import GpuProcess, Machine
from drumline.jobs.outlook import Outlook
from drumline.jobs.queue import Host, Rules, Slot, Waiting
from drumline.jobs.waits import Wait, explain
from queue_cases import BROKEN, Service, service_at

MINUTE = 60_000
RULES = Rules(hold_back_ms=MINUTE, overdue_ms=60 * MINUTE)


def alike(job: Waiting, allowed: Collection[str]) -> tuple[str, ...] | None:
    """All devices alike, none needed for a training on the CPU."""
    assert isinstance(job.gpus, int)
    ordered = sorted(allowed)
    if job.gpu_ids:
        return job.gpu_ids if set(job.gpu_ids) <= set(ordered) else None
    return tuple(ordered[: job.gpus]) if len(ordered) >= job.gpus else None


def host(*slots: Slot, name: str = "h") -> Host:
    return Host(name, slots, alike)


def job(name: str, gpus: int = 1, minutes: int | None = None, **keys: object) -> Waiting:
    expected = None if minutes is None else minutes * MINUTE
    values = {"owner": "o", "priority": 0, "queued_ms": 0, **keys}
    return Waiting(id=name, gpus=gpus, expected_ms=expected, **values)  # type: ignore[arg-type]


def waits(*jobs: Waiting, hosts: Collection[Host], now: int = 0) -> dict[str, Wait]:
    return explain(list(hosts), jobs, now, RULES)


def leased(name: str, holder: str = "x", minutes: int | None = None) -> Slot:
    return Slot(name, "leased", holder, None if minutes is None else minutes * MINUTE)


def test_times_follow_from_the_predictions() -> None:
    """Two devices, each job of one: 10 and 5 minutes run, then 7, then 3 on the one free first."""
    there = host(leased("g0", "a", 10), leased("g1", "b", 5))
    told = waits(job("c", 1, 7), job("d", 1, 3), job("e", 2, 1), hosts=[there])
    assert {name: wait.may_start_ms for name, wait in told.items()} == {
        "c": 5 * MINUTE,
        "d": 10 * MINUTE,
        "e": 13 * MINUTE,
    }
    assert told["e"].code == "devices"
    assert told["c"].reason == (
        "needs 1 device, and 0 of 2 on h are free; others are held by training b"
    )


def test_without_a_prediction_the_time_is_unknown_and_it_says_whose() -> None:
    told = waits(job("c"), hosts=[host(leased("g0", "a"))])
    assert told["c"].may_start_ms is None
    assert told["c"].unknown == "nobody has predicted how long training a will run"
    later = waits(job("c"), job("d"), hosts=[host(leased("g0", "a", 5))])
    assert later["c"].may_start_ms == 5 * MINUTE
    assert later["d"].unknown == "nobody has predicted how long training c will run"


def test_a_prediction_that_has_passed_is_told() -> None:
    told = waits(job("c"), hosts=[host(leased("g0", "a", 5))], now=6 * MINUTE)
    assert told["c"].unknown == "a training runs longer than was predicted"


def test_the_host_that_is_ready_first_is_named() -> None:
    hosts = [host(leased("g0", "a", 9), name="far"), host(leased("g1", "b", 4), name="near")]
    told = waits(job("c", 1, 2), job("d"), hosts=hosts)
    assert (told["c"].host, told["c"].may_start_ms) == ("near", 4 * MINUTE)
    assert (told["d"].host, told["d"].may_start_ms) == ("near", 6 * MINUTE)


def test_one_starts_at_a_look_and_the_next_right_after() -> None:
    told = waits(job("a"), job("b"), hosts=[host(Slot("g0"), Slot("g1"))], now=7)
    assert (told["a"].code, told["b"].code) == ("next", "behind")
    assert told["a"].may_start_ms == told["b"].may_start_ms == 7
    assert told["b"].reason == "comes after 1 other training"


def test_devices_kept_for_another_are_told_so() -> None:
    there = host(Slot("g0"), leased("g1", "a", 30))
    told = waits(job("big", 2, 5), job("small"), hosts=[there])
    assert told["big"].code == "devices"
    assert (told["small"].code, told["small"].may_start_ms) == ("held_back", 35 * MINUTE)
    assert told["small"].reason == "1 device free on h, kept for training big"


def test_what_can_never_be_is_told_with_the_most_there_is() -> None:
    there = host(Slot("g0"), Slot("g1", "out", reason="lost"))
    asked = [job("a", 2, memory_bytes=2**34), job("b", host="gone"), job("c", gpu_ids=("g1",))]
    told = waits(*asked, hosts=[there])
    assert told["c"].reason == "no host can give it devices g1; g1 is lost"
    assert told["a"].code == "impossible"
    assert "2 devices with 16.0 GiB free on each" in told["a"].reason
    assert "the most that one has in order is 1 device" in told["a"].reason
    assert told["b"].code == "no_host"
    assert "host gone is not there; there are h" in told["b"].reason
    assert waits(job("a"), hosts=[])["a"].code == "no_host"


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 5), st.one_of(st.none(), st.integers(1, 30))), max_size=8),
    st.lists(st.one_of(st.none(), st.integers(0, 20)), min_size=1, max_size=4),
)
def test_every_training_is_told_something(
    asked: list[tuple[int, int | None]], running: list[int | None]
) -> None:
    """0 minutes left is a free device."""
    slots = [
        Slot(f"g{i}") if left == 0 else leased(f"g{i}", "x", left) for i, left in enumerate(running)
    ]
    jobs = [job(f"j{i}", gpus, minutes) for i, (gpus, minutes) in enumerate(asked)]
    told = waits(*jobs, hosts=[host(*slots)])
    assert list(told) == [each.id for each in jobs]
    for position, each in enumerate(jobs, 1):
        wait = told[each.id]
        assert wait.position == position
        assert (wait.code == "impossible") == (each.gpus > len(slots))  # type: ignore[operator]
        assert (wait.may_start_ms is None) == bool(wait.unknown)
        assert wait.reason


MACHINE = Machine.probe(simulate="2xH100")


def outlook(service: Service) -> Outlook:
    return Outlook(service.database, rules=service.rules, clock=service.clock)


def test_the_outlook_tells_of_a_databases_queue(database_url: str) -> None:
    with service_at(database_url) as service:
        service.add_host(MACHINE)
        running = service.ask(2, expected_s=60)
        claimed = service.leases.claim("h", MACHINE)
        assert claimed is not None
        first, second = service.ask(1, expected_s=5), service.ask(2)
        told = outlook(service).waits({"h": MACHINE})
        assert list(told) == [first, second]
        claimed_ms = service.trainings.attempts(running)[0].claimed_ms
        assert told[first].may_start_ms == claimed_ms + 60_000
        assert told[second].may_start_ms == claimed_ms + 65_000
        assert running in told[first].reason

        service.outcomes.starting(claimed.token)
        service.outcomes.finish(claimed.token, BROKEN, release=False)
        service.trainings.resume(running)
        told = outlook(service).waits({"h": MACHINE})
        assert {name: wait.code for name, wait in told.items()}[running] == "draining"
        assert sorted(wait.position for wait in told.values()) == [1, 2, 3]


def test_a_process_of_somebody_else_is_named(sqlite_url: str) -> None:
    with service_at(sqlite_url) as service:
        busy = replace(MACHINE.devices[0], processes=(GpuProcess(7, "ann", 2**34),))
        machine = replace(MACHINE, devices=(busy, MACHINE.devices[1]))
        service.add_host(machine)
        waiting = service.ask(2)
        told = outlook(service).waits({"h": machine})[waiting]
        assert told.code == "devices"
        assert "process 7 of ann" in told.reason
        assert told.unknown == (
            "nobody has predicted how long a process outside the queue will run"
        )


def test_trainings_on_the_cpu_wait_for_room(sqlite_url: str) -> None:
    with service_at(sqlite_url) as service:
        service.add_host(MACHINE)
        for _ in range(2):
            service.ask(0)
            assert service.leases.claim("h", MACHINE) is not None
        waiting = service.ask(0)
        assert outlook(service).waits({"h": MACHINE})[waiting].code == "devices"
