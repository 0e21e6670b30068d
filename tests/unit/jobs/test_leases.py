"""Leases on both engines: claimed whole, renewed, taken back in two steps, guarded by tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from drumline.errors import BadInput
from drumline.hardware import GpuProcess, Machine
from drumline.jobs.errors import DeviceTaken, LeaseLost, WrongState
from drumline.jobs.outcome import Ending
from drumline.jobs.queue import Rules
from drumline.jobs.reports import Batch, Value
from drumline.jobs.states import State
from drumline.jobs.training import Request
from queue_cases import BROKEN, CONFIG, DONE, LEASE_MS, Service, service_at

MACHINE = Machine.probe(simulate="4xH100")
GPUS = [device.uuid for device in MACHINE.devices]


@pytest.fixture
def service(database_url: str) -> Iterator[Service]:
    with service_at(database_url, rules=Rules(hold_back_ms=60_000)) as made:
        made.add_host(MACHINE)
        yield made


def claim(service: Service, machine: Machine = MACHINE, host: str = "h") -> tuple[str, str]:
    """The id and token of what is claimed."""
    claimed = service.leases.claim(host, machine)
    assert claimed is not None
    return claimed.training.id, claimed.token


def test_a_claim_takes_all_its_devices(service: Service) -> None:
    training_id = service.ask(3)
    claimed = service.leases.claim("h", MACHINE)
    assert claimed is not None
    assert claimed.training.state is State.LEASED
    assert (claimed.training.host_id, claimed.training.world_size) == ("h", 3)
    held = service.leases.held()
    assert set(held) == set(claimed.gpu_ids)
    assert {each.training_id for each in held.values()} == {training_id}
    assert claimed.lease_until_ms == service.clock.now + LEASE_MS
    assert service.trainings.attempts(training_id)[0].gpu_ids == claimed.gpu_ids


def test_a_claim_takes_nothing_where_not_all_are_free(service: Service) -> None:
    service.ask(2)
    claim(service)
    waiting = service.ask(3)
    assert service.leases.claim("h", MACHINE) is None
    assert service.state(waiting) is State.QUEUED
    assert len(service.leases.held()) == 2


def test_named_devices_are_given_in_the_order_asked(service: Service) -> None:
    service.ask(gpu_ids=(GPUS[3], GPUS[0]))
    claimed = service.leases.claim("h", MACHINE)
    assert claimed is not None
    assert claimed.gpu_ids == (GPUS[3], GPUS[0])
    service.ask(gpu_ids=(GPUS[0],))
    assert service.leases.claim("h", MACHINE) is None


def test_devices_of_others_and_unwell_ones_are_left_alone(service: Service) -> None:
    busy = replace(MACHINE.devices[0], processes=(GpuProcess(7, "ann", 2**34),))
    lost = MACHINE.devices[1].as_lost("fell off")
    machine = replace(MACHINE, devices=(busy, lost, *MACHINE.devices[2:]))
    service.leases.reserve([GPUS[2]], "for a demo")
    service.ask("auto")
    claimed = service.leases.claim("h", machine)
    assert claimed is not None
    assert claimed.gpu_ids == (GPUS[3],)


def test_memory_asked_for_decides_which_device(service: Service) -> None:
    mixed = Machine.probe(simulate="1xA100+1xH200")
    service.add_host(mixed, "mixed")
    big = max(mixed.devices, key=lambda device: device.memory_total_bytes or 0)
    service.ask(1, memory_bytes=100 * 2**30, host="mixed")
    claimed = service.leases.claim("mixed", mixed)
    assert claimed is not None
    assert claimed.gpu_ids == (big.uuid,)


def test_cpu_trainings_take_no_device_and_are_few_at_a_time(service: Service) -> None:
    for _ in range(3):
        service.ask(0)
    assert service.leases.claim("h", MACHINE) is not None
    assert service.leases.claim("h", MACHINE) is not None
    assert service.leases.claim("h", MACHINE) is None
    assert service.leases.held() == {}


def test_auto_means_the_cpu_only_where_no_host_has_devices(service: Service) -> None:
    alone = replace(MACHINE, devices=(), links=())
    service.add_host(alone, "plain")
    service.ask("auto")
    assert service.leases.claim("plain", alone) is None
    assert service.leases.claim("h", MACHINE) is not None


def test_a_host_gets_only_what_may_run_there(service: Service) -> None:
    service.ask(host="elsewhere")
    assert service.leases.claim("h", MACHINE) is None


def test_an_owner_who_used_much_comes_later(service: Service) -> None:
    service.ask(4, owner="ann")
    _, token = claim(service)
    service.clock.now += 1_000
    service.outcomes.starting(token)
    service.outcomes.finish(token, DONE)
    service.ask(4, owner="ann")
    service.clock.now += 1
    second = service.ask(4, owner="bob")
    assert claim(service)[0] == second


def test_a_heartbeat_renews_and_a_lost_token_does_nothing(service: Service) -> None:
    training_id, token = service.ask(), claim(service)[1]
    service.clock.now += LEASE_MS - 1
    assert service.leases.heartbeat(token).lease_until_ms == service.clock.now + LEASE_MS
    assert service.leases.expired() == []
    service.clock.now += LEASE_MS
    [marked] = service.leases.expired("h")
    assert (marked.training_id, marked.reclaiming_ms) == (training_id, service.clock.now)
    for act in (
        lambda: service.leases.heartbeat(token),
        lambda: service.leases.release(token),
        lambda: service.outcomes.starting(token),
        lambda: service.outcomes.running(token),
        lambda: service.outcomes.finish(token, DONE),
        lambda: service.trainings.reports.write(token, Batch((Value("loss", 1, 0, 1.0),))),
    ):
        with pytest.raises(LeaseLost):
            act()
    assert service.state(training_id) is State.LEASED
    assert service.trainings.reports.metrics(training_id) == {}


def test_devices_stay_taken_until_the_processes_are_gone(service: Service) -> None:
    training_id, token = service.ask(4), claim(service)[1]
    service.outcomes.starting(token, process_id=77, process_started=5.0, run_dir="/runs/a")
    service.outcomes.running(token)
    other = service.ask()
    service.clock.now += LEASE_MS
    [marked] = service.leases.expired()
    assert (marked.process_id, marked.process_started) == (77, 5.0)
    assert all(each.reclaiming for each in service.leases.held().values())
    assert service.leases.claim("h", MACHINE) is None
    assert [each.id for each in service.leases.expired()] == [marked.id]  # until it is confirmed
    assert service.leases.expired("elsewhere") == []
    assert service.leases.reclaim(marked.id) is State.QUEUED
    assert service.leases.reclaim(marked.id) is None
    again, _ = claim(service)
    assert again == training_id  # it kept its place before the other
    assert service.trainings.get(training_id).resume is True
    assert service.state(other) is State.QUEUED
    first, second = service.trainings.attempts(training_id)
    assert (first.exit_cause, second.exit_cause) == ("lost", None)


def test_a_late_heartbeat_that_nobody_has_missed_still_counts(service: Service) -> None:
    service.ask()
    token = claim(service)[1]
    service.clock.now += 10 * LEASE_MS
    service.leases.heartbeat(token)
    assert service.leases.expired() == []


def test_lost_leases_are_begun_again_a_bounded_number_of_times(service: Service) -> None:
    training_id = service.ask(max_attempts=3)
    states = []
    for _ in range(3):
        claim(service)
        service.clock.now += LEASE_MS
        [marked] = service.leases.expired()
        states.append(service.leases.reclaim(marked.id))
    assert states == [State.QUEUED, State.QUEUED, State.FAILED]
    training = service.trainings.get(training_id)
    assert training.verdict is not None
    assert "no attempts are left" in training.verdict
    assert service.trainings.resume(training_id).attempts_left == 3


def test_a_cancel_holds_when_the_lease_is_lost(service: Service) -> None:
    training_id = service.ask()
    claim(service)
    service.trainings.cancel(training_id)
    service.clock.now += LEASE_MS
    [marked] = service.leases.expired()
    assert service.leases.reclaim(marked.id) is State.CANCELLED


def test_the_run_directory_may_tell_how_a_lost_attempt_ended(service: Service) -> None:
    training_id, token = service.ask(), claim(service)[1]
    service.outcomes.starting(token)
    service.clock.now += LEASE_MS
    [marked] = service.leases.expired()
    assert service.leases.reclaim(marked.id, DONE) is State.SUCCEEDED
    assert service.trainings.get(training_id).verdict == "all steps done"


def test_an_outcome_is_written_once(service: Service) -> None:
    training_id, token = service.ask(), claim(service)[1]
    service.outcomes.starting(token)
    assert service.outcomes.finish(token, DONE) is State.SUCCEEDED
    with pytest.raises(LeaseLost):
        service.outcomes.finish(token, BROKEN)
    assert service.state(training_id) is State.SUCCEEDED
    assert service.leases.held() == {}
    service.leases.release(token)  # twice is as once


def test_success_before_the_supervisor_said_it_was_there_is_refused(service: Service) -> None:
    training_id, token = service.ask(), claim(service)[1]
    with pytest.raises(WrongState):
        service.outcomes.finish(token, DONE)
    assert service.state(training_id) is State.LEASED
    assert len(service.leases.held()) == 1


def test_states_follow_each_other_and_telling_twice_is_as_once(service: Service) -> None:
    training_id, token = service.ask(), claim(service)[1]
    with pytest.raises(WrongState):
        service.outcomes.running(token)
    service.outcomes.starting(token)
    service.outcomes.starting(token)
    service.clock.now += 5
    service.outcomes.running(token, world_size=2)
    training = service.trainings.get(training_id)
    assert (training.state, training.world_size) == (State.RUNNING, 2)
    assert training.started_ms == service.clock.now


def test_devices_not_given_back_yet_are_swept_like_others(service: Service) -> None:
    """The outcome is written, and the supervisor dies while memory has not fallen yet."""
    training_id, token = service.ask(), claim(service)[1]
    service.outcomes.starting(token)
    service.outcomes.finish(token, BROKEN, release=False)
    assert len(service.leases.held()) == 1
    service.trainings.resume(training_id)
    assert service.leases.claim("h", MACHINE) is None  # not while its devices are not back
    service.leases.heartbeat(token)
    service.clock.now += LEASE_MS
    [marked] = service.leases.expired()
    assert service.leases.reclaim(marked.id) is State.QUEUED
    assert claim(service)[0] == training_id


def test_a_stop_that_nobody_asked_for_goes_back_to_the_queue(service: Service) -> None:
    training_id, token = service.ask(), claim(service)[1]
    service.outcomes.starting(token)
    service.outcomes.running(token)
    stopped = Ending(State.QUEUED, "stopped", "the host shuts down", 75)
    assert service.outcomes.finish(token, stopped) is State.QUEUED
    assert claim(service)[0] == training_id


def test_a_big_one_gets_devices_kept_as_they_come(service: Service) -> None:
    tokens = []
    for _ in range(4):
        service.ask()
        tokens.append(claim(service)[1])
    big = service.ask(4)
    service.clock.now += 60_000
    for token in tokens:
        service.leases.heartbeat(token)
        service.ask()  # a small one that would fit as soon as one is free
    for token in tokens[:3]:
        service.outcomes.starting(token)
        service.outcomes.finish(token, DONE)
        assert service.leases.claim("h", MACHINE) is None
    reserved = service.leases.reserved()
    assert set(reserved) == set(GPUS)
    assert {each.training_id for each in reserved.values()} == {big}
    service.outcomes.starting(tokens[3])
    service.outcomes.finish(tokens[3], DONE)
    assert claim(service)[0] == big
    assert service.leases.reserved() == {}


def test_only_one_host_keeps_devices_for_a_training(service: Service) -> None:
    other = Machine.probe(simulate="4xA100")
    service.add_host(other, "other")
    for host, machine in (("h", MACHINE), ("other", other)):
        service.ask()
        claim(service, machine, host)
    big, small = service.ask(4), service.ask()
    service.clock.now += 60_000
    assert service.leases.claim("h", MACHINE) is None
    assert claim(service, other, "other")[0] == small
    assert {each.host_id for each in service.leases.reserved().values()} == {"h"}
    service.trainings.cancel(big)
    assert service.leases.reserved() == {}


def test_a_run_by_hand_holds_its_devices_and_is_not_started_again(service: Service) -> None:
    request = Request({"steps": 1}, owner="ann", run_dir="/runs/by-hand")
    taken = service.leases.take(request, "h", GPUS[:2])
    assert (taken.training.by_hand, taken.training.task) == (True, "script")
    assert set(service.leases.held()) == set(GPUS[:2])
    with pytest.raises(DeviceTaken, match=taken.training.id):
        service.leases.take(request, "h", GPUS[1:3])
    assert len(service.trainings.list().items) == 1
    service.clock.now += LEASE_MS
    [marked] = service.leases.expired()
    assert service.leases.reclaim(marked.id) is State.FAILED
    with pytest.raises(BadInput, match="script"):
        service.trainings.resume(taken.training.id)


def test_an_operators_reservation_keeps_everybody_out(service: Service) -> None:
    service.leases.reserve(GPUS, "maintenance")
    service.ask()
    assert service.leases.claim("h", MACHINE) is None
    with pytest.raises(DeviceTaken, match="maintenance"):
        service.leases.take(Request(CONFIG), "h", GPUS[:1])
    service.leases.unreserve(GPUS[:1])
    claimed = service.leases.claim("h", MACHINE)
    assert claimed is not None
    assert claimed.gpu_ids == (GPUS[0],)
