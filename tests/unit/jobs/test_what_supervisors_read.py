"""What a supervisor makes of a run directory: metrics, events, and how it ended."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from drumline.config.environment import MARK
from drumline.config.service import ServiceSettings
from drumline.database import now_ms
from drumline.events import EventLog, EventReader, read_events
from drumline.jobs.copying import batch_of
from drumline.jobs.endings import ending_found, ending_of
from drumline.jobs.launching import devices_of, environment, prepare
from drumline.jobs.states import State
from drumline.run_directory import RunDirectory


def log(path: Path, *events: dict[str, Any]) -> EventReader:
    written = EventLog(path)
    for event in events:
        written.emit(**event)
    written.close()
    return EventReader(path)


def test_events_are_located_by_the_byte_their_line_begins_at(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    reader = log(path, {"kind": "phase", "name": "ä"}, {"kind": "phase", "name": "b"})
    located = reader.located()
    data = path.read_bytes()
    assert [json.loads(data[at:].splitlines()[0])["name"] for at, _ in located] == ["ä", "b"]
    assert reader.offset == len(data)
    again = EventReader(path, located[1][0])
    assert [event["name"] for _, event in again.located()] == ["b"]


@pytest.mark.parametrize("at_most", [1, 40, 150, 10_000])
def test_a_log_read_in_parts_is_the_same(tmp_path: Path, at_most: int) -> None:
    path = tmp_path / "events.jsonl"
    events = [{"kind": "step", "step": step, "loss": "x" * step} for step in range(20)]
    reader = log(path, *events)
    with path.open("a") as file:
        file.write('{"v": 1, "kind": "torn')
    parts = []
    while part := reader.located(at_most):
        parts += part
    assert [event for _, event in parts] == read_events(path)
    assert len(parts) == 20


def test_metrics_of_steps_and_evaluations(tmp_path: Path) -> None:
    step = {"kind": "step", "steps": 30, "loss_scale": 1, "rank_samples_per_s": [1.0, 2.0]}
    reader = log(
        tmp_path / "events.jsonl",
        {"kind": "run_started", "step": 0, "steps": 30, "name": "a"},
        {**step, "step": 10, "loss": 3.0, "metrics": {"l0": 5.0}},
        {**step, "step": 20, "loss": float("nan"), "metrics": {}},
        {"kind": "evaluation", "step": 20, "metrics": {"fvu": 0.25, "note": "text"}},
        {**step, "step": 10, "loss": 2.0},
    )
    located = reader.located()
    batch = batch_of(located, reader.offset)
    values = {(value.name, value.step): value.value for value in batch.values}
    assert values == {
        ("loss", 10): 2.0,  # taken again after a restart: the later counts
        ("loss_scale", 10): 1.0,
        ("l0", 10): 5.0,
        ("loss", 20): None,
        ("loss_scale", 20): 1.0,
        ("evaluation/fvu", 20): 0.25,
    }
    assert [event.kind for event in batch.events] == ["run_started", "evaluation"]
    assert (batch.step, batch.steps, batch.offset) == (10, 30, reader.offset)


def run_with(path: Path, said: dict[str, Any] | None, result: dict[str, Any] | None = None) -> Any:
    run = RunDirectory.create(path)
    if said is not None:
        (run.logs_path / "launcher.json").write_text(json.dumps(said))
    if result is not None:
        run.result_path.write_text(json.dumps(result))
    return run


@pytest.mark.parametrize(
    ("code", "said", "state", "cause", "verdict"),
    [
        (0, {"message": ""}, State.SUCCEEDED, "done", "done"),
        (75, {"message": "stopped at step 3"}, State.QUEUED, "stopped", "stopped at step 3"),
        (-9, None, State.QUEUED, "lost", "the launcher was killed by signal 9"),
        (
            2,
            {"error": {"code": "bad_data", "message": "No file.", "remedy": "Give one."}},
            State.FAILED,
            "bad_input",
            "No file. Give one.",
        ),
        (
            2,
            {"error": {"code": "bad_devices", "message": "It is held.", "remedy": ""}},
            State.QUEUED,
            "device_taken",
            "It is held.",
        ),
        (1, {"message": "rank 0: boom"}, State.FAILED, "failed", "rank 0: boom"),
        (1, None, State.FAILED, "failed", "the launcher ended with exit code 1"),
    ],
)
def test_how_an_attempt_ended_by_its_launcher(
    tmp_path: Path, code: int, said: dict[str, Any] | None, state: State, cause: str, verdict: str
) -> None:
    ending = ending_of(code, run_with(tmp_path, said))
    assert (ending.state, ending.cause, ending.verdict) == (state, cause, verdict)


@pytest.mark.parametrize(
    ("status", "state"),
    [("done", State.SUCCEEDED), ("failed", State.FAILED), ("stopped", None)],
)
def test_how_an_attempt_ended_that_nobody_watched(
    tmp_path: Path, status: str, state: State | None
) -> None:
    run = run_with(tmp_path, None, {"status": status, "message": "so"})
    found = ending_found(str(run.path), claimed_ms=now_ms() - 60_000)
    assert (found.state if found else None) is state


def test_a_result_from_before_the_attempt_is_not_its_own(tmp_path: Path) -> None:
    run = run_with(tmp_path, None, {"status": "done"})
    os.utime(run.result_path, (1000, 1000))
    assert ending_found(str(run.path), claimed_ms=now_ms()) is None
    assert ending_found(None, claimed_ms=0) is None


def test_a_training_gets_the_variables_allowed_and_no_other() -> None:
    settings = ServiceSettings(passed_environment=("PATH", "HF_HOME"))
    own = {"PATH": "/bin", "DRUMLINE_TOKEN": "secret", "AWS_SECRET": "x", "PYTHONPATH": "/src"}
    given = environment(settings, "abc/1", own)
    assert given == {"PATH": "/bin", "PYTHONPATH": "/src", MARK: "abc/1"}


@pytest.mark.parametrize(
    ("asked", "uuids", "devices"),
    [
        ("auto", ["GPU-a", "GPU-b"], "GPU-a,GPU-b"),
        ("auto", ["SIM-a", "SIM-b", "SIM-c"], "cpu:3"),
        ("cpu:4", [], "cpu:4"),
        ("auto", [], "cpu"),
    ],
)
def test_devices_go_by_uuid_and_simulated_ones_are_cpu_processes(
    asked: str, uuids: list[str], devices: str
) -> None:
    assert devices_of({"devices": asked}, uuids) == devices


def test_simulated_devices_are_labelled_in_the_run(tmp_path: Path) -> None:
    run = prepare(tmp_path / "run", {"name": "x"}, ["SIM-a", "SIM-b"])
    (event,) = run.events()
    assert (event["code"], event["devices"]) == ("simulated_devices", ["SIM-a", "SIM-b"])
    assert prepare(tmp_path / "real", {"name": "x"}, ["GPU-a"]).events() == []


def test_a_long_log_comes_in_batches_and_after_a_failure_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from drumline.database import DatabaseError
    from drumline.jobs import copying

    monkeypatch.setattr(copying, "MOST_BYTES", 400)
    events = [{"kind": "step", "step": step, "steps": 30, "loss": 1.0} for step in range(1, 31)]
    reader = log(tmp_path / "events.jsonl", {"kind": "run_started", "world_size": 2}, *events)
    written: list[int] = []
    told: list[dict[str, Any]] = []

    class Service:
        """Reports and outcomes; every other write does not reach the database."""

        calls = 0

        def write(self, token: str, batch: copying.Batch) -> None:
            self.calls += 1
            if self.calls % 2:
                raise DatabaseError("away")
            written.extend(value.step for value in batch.values)

        def running(self, token: str, **values: Any) -> None:
            told.append(values)

    service: Any = Service()
    copier = copying.Copier(reader, service, service, "token")
    while True:
        try:
            if not copier.bring():
                break
        except DatabaseError:
            continue
    assert written == list(range(1, 31)), "in order, each once"
    assert service.calls > 8
    assert [values["world_size"] for values in told] == [2]
