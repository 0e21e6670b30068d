"""Runs started by hand hold their devices, and get only those that nobody holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from drumline.config import RunConfig
from drumline.errors import DeviceError
from drumline.hardware import Machine
from drumline.hardware.device_locks import DeviceLocks, holders
from drumline.jobs import local

CONFIG = RunConfig(steps=1, global_batch=64, devices="2")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    """Four devices that pass for real ones, and a folder for their locks."""
    simulated = Machine.probe(simulate="4xH100")
    devices = [replace(d, kind="cuda", simulated=False) for d in simulated.devices]
    machine = replace(simulated, devices=tuple(devices))
    monkeypatch.setattr(local, "visible_machine", lambda: machine)
    monkeypatch.setenv("DRUMLINE_LOCK_FOLDER", str(tmp_path / "locks"))
    return machine


def test_two_runs_never_get_the_same_device(machine: Machine, tmp_path: Path) -> None:
    with (
        local.devices_for(CONFIG, tmp_path / "a") as first,
        local.devices_for(CONFIG, tmp_path / "b") as second,
    ):
        given = [device.uuid for held in (first, second) for device in held.plan.devices]
        assert sorted(filter(None, given)) == sorted(device.uuid for device in machine.devices)
        assert [path.stem for path in first.locks] == sorted(
            str(device.uuid) for device in first.plan.devices
        )
        with (
            pytest.raises(DeviceError, match=r"held by process \d+ of .*\(.*/[ab]\)"),
            local.devices_for(CONFIG, tmp_path / "c"),
        ):
            pass
    with local.devices_for(CONFIG, tmp_path / "d") as third:
        assert len(third.plan.devices) == 2


def test_a_named_device_that_is_held_is_refused_with_its_holder_and_one_that_is_free(
    machine: Machine, tmp_path: Path
) -> None:
    config = RunConfig(steps=1, global_batch=64, devices="1,")
    with (
        local.devices_for(config, tmp_path / "first"),
        pytest.raises(DeviceError) as refused,
    ):
        local.plan_beside_others(config)
    assert str(tmp_path / "first") in refused.value.message
    assert "is free" in refused.value.remedy


def test_a_device_taken_between_looking_and_taking_is_planned_around(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RunConfig(steps=1, global_batch=64, devices="1")
    looked: list[dict[str, object]] = []

    def blind_at_first(there: Machine) -> dict[str, object]:
        seen = holders(tmp_path / "locks", [device.uuid for device in there.devices])
        looked.append({} if not looked else dict(seen))
        return looked[-1]

    monkeypatch.setattr(local, "held_on", blind_at_first)
    (tmp_path / "locks").mkdir()
    with (
        DeviceLocks(tmp_path / "locks", [machine.devices[0].uuid]),
        local.devices_for(config, tmp_path / "run") as held,
    ):
        assert held.plan.devices[0].uuid != machine.devices[0].uuid
    assert len(looked) == 2


def test_a_run_on_the_cpu_locks_nothing(machine: Machine, tmp_path: Path) -> None:
    config = RunConfig(steps=1, global_batch=64, devices="cpu:2")
    with local.devices_for(config, tmp_path / "run") as held:
        assert held.locks == ()
    assert not (tmp_path / "locks").exists() or not list((tmp_path / "locks").iterdir())
