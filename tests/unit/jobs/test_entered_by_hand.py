"""A run started by hand is in the service's list while it runs, and its devices are leased."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest

from drumline.config import RunConfig
from drumline.config.environment import MARK, has_service
from drumline.database import Database, now_ms, open_database
from drumline.errors import DeviceError
from drumline.events import EventLog
from drumline.hardware import Machine
from drumline.jobs import local
from drumline.jobs.leases import Leases
from drumline.jobs.listing import Filter
from drumline.jobs.reports import Reports
from drumline.jobs.states import State
from drumline.jobs.training import Request, Training
from drumline.jobs.trainings import Trainings
from drumline.monitoring.inventory import Inventory
from drumline.run_directory import RunDirectory

CONFIG = RunConfig(name="mine", steps=30, global_batch=64, devices="2")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    """Four devices that pass for real ones, and a folder for their locks."""
    simulated = Machine.probe(simulate="4xH100")
    devices = [replace(d, kind="cuda", simulated=False) for d in simulated.devices]
    machine = replace(simulated, devices=tuple(devices))
    monkeypatch.setattr(local, "visible_machine", lambda: machine)
    monkeypatch.setenv("DRUMLINE_LOCK_FOLDER", str(tmp_path / "locks"))
    return machine


@pytest.fixture
def database(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """The service's database, named in the environment as a user does."""
    monkeypatch.setenv("DRUMLINE_DATABASE_URL", database_url)
    monkeypatch.setenv("DRUMLINE_HEARTBEAT_S", "0.1")
    opened = open_database(database_url)
    yield opened
    opened.close()


def only(database: Database) -> Training:
    """The one training there is."""
    (training,) = Trainings(database).list(Filter()).items
    return training


def end(run: RunDirectory, status: str) -> None:
    """What a launcher leaves at the end."""
    run.result_path.write_text(json.dumps({"status": status, "message": f"{status} it is"}))


def test_it_is_listed_by_its_run_directory_with_what_it_reports(
    machine: Machine, database: Database, tmp_path: Path
) -> None:
    path = tmp_path / "runs" / "mine"
    with local.devices_for(CONFIG, path) as held:
        leased = Leases(database).held()
        assert sorted(leased) == sorted(str(device.uuid) for device in held.plan.devices)
        assert only(database).by_hand
        assert only(database).run_dir == str(path)
        run = RunDirectory.create(path)
        events = EventLog(run.events_path)
        events.emit("run_started", world_size=2, step=0, steps=30)
        events.emit("step", step=10, steps=30, loss=0.5)
        end(run, "done")
    ended = only(database)
    assert (ended.state, ended.step, ended.world_size) == (State.SUCCEEDED, 10, 2)
    assert ended.run_dir == str(path)
    assert [p.mean for p in Reports(database).metrics(ended.id)["loss"]] == [0.5]
    assert Leases(database).held() == {}


@pytest.mark.parametrize(
    ("status", "state"), [("stopped", State.CANCELLED), ("failed", State.FAILED)]
)
def test_how_it_ended_is_told(
    machine: Machine, database: Database, tmp_path: Path, status: str, state: State
) -> None:
    with local.devices_for(CONFIG, tmp_path / "run"):
        end(RunDirectory.create(tmp_path / "run"), status)
    assert only(database).state is state
    assert Leases(database).held() == {}


def test_devices_that_trainings_have_leased_are_planned_around(
    machine: Machine, database: Database, tmp_path: Path
) -> None:
    leases = Leases(database)
    Inventory(database).record(machine, now_ms(), "host")
    request = Request(CONFIG.model_dump(mode="json"), owner="ann")
    first = [device.uuid for device in machine.devices[:2]]
    leases.take(request, "host", first)
    with local.devices_for(CONFIG, tmp_path / "run") as held:
        assert not {device.uuid for device in held.plan.devices} & set(first)
    named = CONFIG.model_copy(update={"devices": first[0]})
    with (
        pytest.raises(DeviceError, match="held by training"),
        local.devices_for(named, tmp_path / "other"),
    ):
        pass


def test_a_cancel_in_the_console_stops_it_as_a_signal_does(
    machine: Machine, database: Database, tmp_path: Path
) -> None:
    asked = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        asked.set()

    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        with local.devices_for(CONFIG, tmp_path / "run"):
            Trainings(database).cancel(only(database).id)
            assert asked.wait(60)
            end(RunDirectory.create(tmp_path / "run"), "stopped")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert only(database).state is State.CANCELLED


def test_a_service_that_is_away_does_not_keep_a_run_from_its_devices(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DRUMLINE_DATABASE_URL", "postgresql://nobody@127.0.0.1:9/none")
    with local.devices_for(CONFIG, tmp_path / "run") as held:
        assert len(held.locks) == 2


def test_where_there_is_a_service(tmp_path: Path) -> None:
    home = {"DRUMLINE_HOME": str(tmp_path)}
    assert not has_service(home)
    (tmp_path / "drumline.db").touch()
    assert has_service(home)
    assert not has_service({**home, MARK: "abc/1"}), "what the service runs is there already"
    assert has_service({"HOME": "/nowhere", "DRUMLINE_DATABASE_URL": "postgresql://x"})
