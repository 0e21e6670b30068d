"""Trainings on both engines: made, listed, cancelled, paused, resumed, copied, deleted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from drumline.errors import BadInput, ConfigError, DeviceError
from drumline.hardware import Machine
from drumline.jobs.errors import IdempotencyConflict, UnknownTraining, WrongState
from drumline.jobs.listing import Filter
from drumline.jobs.outcome import Ending
from drumline.jobs.reports import Batch, Value
from drumline.jobs.states import State
from drumline.jobs.training import Request
from queue_cases import BROKEN, CONFIG, DONE, Service, service_at

MACHINE = Machine.probe(simulate="4xH100")
GPUS = [device.uuid for device in MACHINE.devices]


@pytest.fixture
def service(database_url: str) -> Iterator[Service]:
    with service_at(database_url) as made:
        made.add_host(MACHINE)
        yield made


def started(service: Service) -> tuple[str, str]:
    """The id of a running training and its token."""
    training_id = service.ask()
    claim = service.leases.claim("h", MACHINE)
    assert claim is not None
    assert claim.training.id == training_id
    service.outcomes.starting(claim.token, run_dir="/runs/a")
    service.outcomes.running(claim.token)
    return training_id, claim.token


def ended(service: Service, ending: Ending = DONE) -> str:
    training_id, token = started(service)
    service.outcomes.finish(token, ending)
    return training_id


def test_what_is_asked_is_what_is_written(service: Service) -> None:
    request = Request(
        {**CONFIG, "name": "small", "distributed": {"mode": "none"}},
        owner="ann",
        gpu_ids=("3", GPUS[1]),
        memory_bytes=2**33,
        host="h",
        priority=2,
        expected_s=60.5,
    )
    training = service.trainings.get(service.trainings.create(request).id)
    assert (training.name, training.task, training.owner) == ("small", "sae", "ann")
    assert (training.gpu_ids, training.gpus) == ((GPUS[3], GPUS[1]), 2)
    assert (training.memory_bytes, training.asked_host, training.priority) == (2**33, "h", 2)
    assert (training.expected_s, training.distributed, training.steps) == (60.5, False, 8)
    assert (training.state, training.queued_ms) == (State.QUEUED, service.clock.now)
    assert training.config["task"]["activations"] == "somewhere"


def test_the_configs_devices_are_understood(service: Service) -> None:
    for said, gpus, count in (
        ("auto", "auto", 0),
        ("all", "all", 0),
        ("2", 2, 0),
        ("cpu:3", 0, 0),
        ("0,2", 2, 2),
        ("1,", 1, 1),
    ):
        training = service.trainings.create(Request({**CONFIG, "devices": said}))
        assert (training.gpus, len(training.gpu_ids)) == (gpus, count)


UNUSABLE: list[tuple[dict[str, Any], type[Exception]]] = [
    ({"config": {"steps": 1}}, ConfigError),
    ({"config": {**CONFIG, "stepz": 1}}, ConfigError),
    ({"config": {**CONFIG, "task": {"name": "nothing"}}}, ConfigError),
    ({"gpu_ids": ("9",)}, DeviceError),
    ({"gpu_ids": ("0", GPUS[0])}, DeviceError),
    ({"gpu_ids": ("SIM-",)}, DeviceError),
    ({"gpus": -1}, DeviceError),
    ({"priority": 2**40}, BadInput),
    ({"max_attempts": 0}, BadInput),
    ({"name": "x" * 256}, BadInput),
    ({"owner": "\x00"}, BadInput),
]


def test_what_cannot_be_leaves_nothing_behind(service: Service) -> None:
    for keys, error in UNUSABLE:
        with pytest.raises(error):
            service.trainings.create(Request(**{"config": CONFIG, **keys}))
        assert service.trainings.list().items == ()


def test_an_index_is_refused_where_hosts_are_several(service: Service) -> None:
    service.add_host(Machine.probe(simulate="2xA100"), "other")
    with pytest.raises(DeviceError, match="on each host"):
        service.ask(gpu_ids=("0",))
    assert len(service.trainings.get(service.ask(gpu_ids=("0",), host="h")).gpu_ids) == 1


def test_a_key_makes_one_training_of_each_owner(service: Service) -> None:
    first = service.ask(idempotency_key="k", owner="ann")
    assert service.ask(idempotency_key="k", owner="ann") == first
    assert service.ask(idempotency_key="k", owner="bob") != first
    with pytest.raises(IdempotencyConflict, match=first):
        service.ask(2, idempotency_key="k", owner="ann")
    assert service.ask() != service.ask()


def test_a_list_in_parts_shows_each_once_though_more_come(service: Service) -> None:
    ids = []
    for number in range(7):
        service.clock.now += number % 2  # some at the same time
        ids.append(service.ask())
    page = service.trainings.list(limit=3)
    shown = [training.id for training in page.items]
    service.ask()
    while page.next_cursor:
        page = service.trainings.list(limit=3, cursor=page.next_cursor)
        shown += [training.id for training in page.items]
    assert sorted(shown) == sorted(ids)
    times = [service.trainings.get(each).created_ms for each in shown]
    assert times == sorted(times, reverse=True)


def test_a_cursor_of_somebody_elses_is_refused(service: Service) -> None:
    for cursor in ("", "x", "é", "MTIzNA", "\x00"):
        with pytest.raises(BadInput, match="cursor"):
            service.trainings.list(cursor=cursor)


def test_filters_narrow_the_list(service: Service) -> None:
    done = ended(service)
    mine = service.ask(owner="ann", name="100% Sparse_Run")
    draft = service.ask(draft=True)

    def shown(**keys: Any) -> set[str]:
        return {training.id for training in service.trainings.list(Filter(**keys)).items}

    assert shown() == {done, mine, draft}
    assert shown(states=[State.SUCCEEDED, State.DRAFT]) == {done, draft}
    assert shown(owner="ann") == {mine}
    assert shown(task="sae") == {done, mine, draft}
    assert shown(task="clstm_ppo") == set()
    assert shown(host="h") == {done}
    assert shown(text="sparse_r") == shown(text="0% s") == shown(text=mine[2:8]) == {mine}
    assert shown(text="sparse%run") == shown(text="\x00") == set()
    service.trainings.archive(done)
    assert shown() == {mine, draft}
    assert shown(archived=True) == {done}
    service.trainings.archive(done, archived=False)
    assert shown() == {done, mine, draft}


def test_followers_see_what_changed(service: Service) -> None:
    first, second = service.ask(), service.ask()
    service.clock.now += 5
    service.trainings.cancel(first)
    changed = service.trainings.changed_since(service.clock.now)
    assert [training.id for training in changed] == [first]
    changed = service.trainings.changed_since(0)
    assert [training.id for training in changed] == [second, first]
    counts = service.trainings.counts()
    assert counts[State.QUEUED] == counts[State.CANCELLED] == 1
    assert sum(counts.values()) == 2
    assert set(counts) == set(State)


def test_what_waits_is_cancelled_at_once(service: Service) -> None:
    training_id = service.ask()
    training = service.trainings.cancel(training_id)
    assert (training.state, training.ended_ms) == (State.CANCELLED, service.clock.now)
    assert service.trainings.cancel(training_id).state is State.CANCELLED
    assert service.leases.claim("h", MACHINE) is None


def test_what_runs_is_asked_to_stop_and_progress_does_not_undo_that(service: Service) -> None:
    training_id, token = started(service)
    assert service.trainings.cancel(training_id).state is State.RUNNING
    service.trainings.reports.write(token, Batch((Value("loss", 1, 0, 1.0),), step=1))
    assert service.leases.heartbeat(token).stop == "cancel"
    service.trainings.pause(training_id)
    assert service.leases.heartbeat(token).stop == "cancel"
    assert service.outcomes.finish(token, BROKEN) is State.CANCELLED
    assert service.trainings.get(training_id).verdict == "rank 1 died"


def test_a_pause_gives_the_devices_to_others_and_a_resume_goes_on(service: Service) -> None:
    training_id, token = started(service)
    service.trainings.pause(training_id)
    assert service.leases.heartbeat(token).stop == "pause"
    service.outcomes.pausing(token)
    stopped = Ending(State.QUEUED, "stopped", "saved at step 4", 75)
    assert service.outcomes.finish(token, stopped) is State.PAUSED
    assert service.leases.held() == {}
    assert service.leases.claim("h", MACHINE) is None
    service.trainings.resume(training_id)
    claim = service.leases.claim("h", MACHINE)
    assert claim is not None
    assert (claim.training.id, claim.attempt) == (training_id, 2)
    assert (claim.training.resume, claim.training.run_dir) == (True, "/runs/a")
    assert service.leases.heartbeat(claim.token).stop is None


def test_pausing_what_waits_takes_it_out_of_the_queue(service: Service) -> None:
    training_id = service.ask()
    assert service.trainings.pause(training_id).state is State.PAUSED
    assert service.leases.claim("h", MACHINE) is None
    assert service.trainings.resume(training_id).resume is False


def test_a_retry_begins_anew_and_forgets_what_was_reported(service: Service) -> None:
    training_id, token = started(service)
    service.trainings.reports.write(token, Batch((Value("loss", 3, 0, 1.0),), offset=10, step=3))
    service.outcomes.finish(token, BROKEN)
    training = service.trainings.retry(training_id)
    assert (training.state, training.resume, training.run_dir) == (State.QUEUED, False, None)
    assert (training.step, training.events_offset, training.verdict) == (None, 0, None)
    assert service.trainings.reports.metrics(training_id) == {}
    assert training.attempts_left == training.max_attempts


def test_what_states_do_not_allow_is_refused(service: Service) -> None:
    done, draft = ended(service), service.ask(draft=True)
    running, _ = started(service)
    for act, training_id in (
        (service.trainings.cancel, done),
        (service.trainings.pause, done),
        (service.trainings.resume, done),
        (service.trainings.retry, done),
        (service.trainings.enqueue, done),
        (service.trainings.pause, draft),
        (service.trainings.resume, draft),
        (service.trainings.archive, draft),
        (service.trainings.resume, running),
        (service.trainings.retry, running),
        (service.trainings.archive, running),
        (service.trainings.delete, running),
    ):
        before = service.trainings.get(training_id)
        with pytest.raises(WrongState):
            act(training_id)
        assert service.trainings.get(training_id) == before
    assert service.trainings.enqueue(draft).state is State.QUEUED


def test_an_unknown_one_is_named(service: Service) -> None:
    trainings = service.trainings
    acts = (
        trainings.get,
        trainings.cancel,
        trainings.pause,
        trainings.resume,
        trainings.retry,
        trainings.clone,
        trainings.archive,
        trainings.delete,
        trainings.attempts,
    )
    for act in acts:
        for training_id in ("none", "\x00", ""):
            with pytest.raises(UnknownTraining):
                act(training_id)


def test_a_clone_is_a_training_of_its_own(service: Service) -> None:
    source = ended(service)
    clone = service.trainings.clone(source, name="again", priority=3)
    assert (clone.state, clone.cloned_from, clone.name) == (State.QUEUED, source, "again")
    assert (clone.config, clone.priority) == (service.trainings.get(source).config, 3)
    assert (clone.run_dir, clone.attempts_made) == (None, 0)


def test_a_deleted_one_is_gone_with_all_it_reported(service: Service) -> None:
    training_id, token = started(service)
    values = tuple(Value("loss", step, 0, 1.0) for step in range(50))
    service.trainings.reports.write(token, Batch(values))
    service.outcomes.finish(token, DONE, release=False)
    with pytest.raises(WrongState):
        service.trainings.delete(training_id)
    service.leases.release(token)
    service.trainings.delete(training_id)
    with pytest.raises(UnknownTraining):
        service.trainings.attempts(training_id)
    with pytest.raises(UnknownTraining):
        service.trainings.delete(training_id)
    assert service.trainings.reports.metrics(training_id) == {}
