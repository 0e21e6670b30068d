"""Trainings from the queue to their end, through a real agent, its supervisors and their ranks."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from service_runs import LEASE_S, Service
from support import until

from drumline.events import read_events
from drumline.hardware import Machine
from drumline.hardware.device_locks import DeviceLocks
from drumline.jobs.leases import Leases
from drumline.jobs.reports import Reports
from drumline.jobs.states import State
from drumline.run_directory import RunDirectory


@pytest.fixture
def service(request: pytest.FixtureRequest, tmp_path: Path, activations: Path) -> Iterator[Service]:
    """On PostgreSQL unless a test says otherwise; what is the database's is tested on both."""
    engine = getattr(request, "param", "postgresql")
    made = Service(request.getfixturevalue(f"{engine}_url"), tmp_path, activations)
    yield made
    made.clear()


on_sqlite = pytest.mark.parametrize("service", ["sqlite"], indirect=True)
on_both = pytest.mark.parametrize("service", ["sqlite", "postgresql"], indirect=True)


@on_both
def test_a_training_runs_on_its_devices_and_gives_them_back(service: Service) -> None:
    training_id = service.queue(steps=30, gpus=2)
    with service.agent() as agent:
        ended = service.wait_for(training_id, State.SUCCEEDED, State.FAILED, agent=agent)
        assert ended.state is State.SUCCEEDED, ended.verdict
        assert (ended.step, ended.steps, ended.world_size) == (30, 30, 2)
        assert ended.run_dir is not None
        run = Path(ended.run_dir)
        assert run.parent == service.folder / "runs"
        until("the end of its processes", lambda: not service.processes(training_id))
    assert Leases(service.database).held() == {}

    log = read_events(run / "events.jsonl")
    reports = Reports(service.database)
    losses = {event["step"]: event["loss"] for event in log if event["kind"] == "step"}
    points = reports.metrics(training_id, ["loss"])["loss"]
    assert {point.step: point.mean for point in points} == pytest.approx(losses)
    kept = [event.event for event in reports.events(training_id, limit=1000)]
    assert kept == [event for event in log if event["kind"] != "step"]
    labelled = [event for event in kept if event.get("code") == "simulated_devices"]
    assert len(labelled) == 1
    assert labelled[0]["devices"] == list(service.attempt(training_id).gpu_ids)
    assert ended.events_offset == (run / "events.jsonl").stat().st_size


@on_sqlite
def test_a_training_outlives_its_agent_and_the_next_agent_leaves_it_alone(
    service: Service,
) -> None:
    training_id = service.queue(steps=100_000)
    with service.agent("first") as agent:
        service.wait_for_step(training_id, 5, agent)
        agent.signal(signal.SIGKILL)
        agent.finish()
    supervisor = service.attempt(training_id).process_id
    with service.agent("second") as agent:
        reached = service.training(training_id).step
        assert reached is not None
        service.wait_for_step(training_id, reached + 50, agent)
        lease = service.attempt(training_id).lease_until_ms
        until(
            "leases that would have run out",
            lambda: service.attempt(training_id).lease_until_ms > lease + 2000 * LEASE_S,
        )
        attempt = service.attempt(training_id)
        assert (attempt.number, attempt.process_id) == (1, supervisor)
        service.trainings.cancel(training_id)
        ended = service.wait_for(training_id, State.CANCELLED, agent=agent)
        until("the end of its processes", lambda: not service.processes(training_id))
    assert ended.run_dir is not None
    log = read_events(Path(ended.run_dir) / "events.jsonl")
    assert [e["kind"] for e in log if e["kind"] == "stop_requested"], "it saved before it ended"
    assert RunDirectory(Path(ended.run_dir)).result()["status"] == "stopped"  # type: ignore[index]
    assert Leases(service.database).held() == {}


def test_a_dead_supervisor_s_training_is_taken_back_and_goes_on_from_where_it_saved(
    service: Service,
) -> None:
    training_id = service.queue(steps=1_000, gpus=2)
    with service.agent() as agent:
        service.wait_for_step(training_id, 50, agent)
        first = service.attempt(training_id)
        before = {process.pid for process in service.processes(training_id)}
        assert first.process_id in before
        assert len(before) >= 4, "supervisor, launcher and two ranks"
        os.kill(first.process_id or 0, signal.SIGKILL)
        until("a second attempt", lambda: service.attempt(training_id).number == 2)
        assert not [pid for pid in before if psutil.pid_exists(pid) and _lives(pid)]
        ended = service.wait_for(training_id, State.SUCCEEDED, State.FAILED, agent=agent)
        until("the end of its processes", lambda: not service.processes(training_id))
    assert ended.state is State.SUCCEEDED, ended.verdict
    made = service.trainings.attempts(training_id)
    assert [(a.number, a.exit_cause) for a in made] == [(1, "lost"), (2, "done")]
    assert made[0].released_ms is not None
    assert made[0].released_ms <= made[1].claimed_ms, "devices were free before they were leased"
    assert ended.run_dir is not None
    log = read_events(Path(ended.run_dir) / "events.jsonl")
    assert [e["status"] for e in log if e["kind"] == "run_ended"] == ["stopped", "done"]
    resumed = [e["step"] for e in log if e["kind"] == "run_started"]
    assert resumed[0] == 0
    assert resumed[1] > 50, "nothing was lost: it saved when it lost its supervisor"


def test_a_killed_launcher_is_no_end_of_the_training(service: Service) -> None:
    training_id = service.queue()
    with service.quick_agent() as agent:
        service.wait_for_step(training_id, 10, agent)
        supervisor = psutil.Process(service.attempt(training_id).process_id)
        launcher = supervisor.children()[0]
        launcher.send_signal(signal.SIGKILL)
        ended = service.wait_for(training_id, State.SUCCEEDED, State.FAILED, agent=agent)
    assert ended.state is State.SUCCEEDED, ended.verdict
    causes = [a.exit_cause for a in service.trainings.attempts(training_id)]
    assert causes == ["lost", "done"]


def test_a_config_that_cannot_be_used_fails_once_with_what_to_do(service: Service) -> None:
    training_id = service.queue()
    config = service.training(training_id).config
    config["task"]["activations"] = str(service.activations.parent / "moved.npy")
    training_id = service.trainings.clone(training_id, config=config).id
    with service.agent() as agent:
        ended = service.wait_for(training_id, State.FAILED, State.SUCCEEDED, agent=agent)
    assert ended.state is State.FAILED
    assert "moved.npy" in (ended.verdict or "")
    (attempt,) = service.trainings.attempts(training_id)
    assert (attempt.exit_cause, attempt.exit_code) == ("bad_input", 2)


def test_devices_that_a_run_by_hand_holds_are_not_given_to_trainings(service: Service) -> None:
    uuids = [device.uuid for device in Machine.probe(simulate="4xH100").devices]
    (service.folder / "locks").mkdir()
    with DeviceLocks(service.folder / "locks", uuids[:3]):
        too_many, fits = service.queue(gpus=2), service.queue(gpus=1)
        with service.quick_agent() as agent:
            service.wait_for(fits, State.SUCCEEDED, agent=agent)
            assert service.attempt(fits).gpu_ids == (uuids[3],)
            assert service.training(too_many).state is State.QUEUED


def _lives(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
