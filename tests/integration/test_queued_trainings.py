"""Trainings from the queue to their end, through a real agent, its supervisors and their ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from service_runs import Service
from support import until

from drumline.events import read_events
from drumline.jobs.leases import Leases
from drumline.jobs.reports import Reports
from drumline.jobs.states import State


@pytest.fixture
def service(database_url: str, tmp_path: Path, activations: Path) -> Iterator[Service]:
    made = Service(database_url, tmp_path, activations)
    yield made
    made.clear()


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
