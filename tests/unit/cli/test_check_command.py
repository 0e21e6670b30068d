"""`drumline check`: lines, JSON and exit codes; the checks themselves are stood in for."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from drumline.bench import checks
from drumline.bench.checks import Finding, Status
from drumline.cli.check import held
from drumline.cli.main import run
from drumline.config.environment import LOCK_FOLDER
from drumline.hardware import Machine
from drumline.hardware.device_locks import DeviceLocks, holders, lock_folder
from drumline.launch import preflight

GOOD = Finding("disk", Status.PASS, "fine", {"free_bytes": 5}, group="host", seconds=0.5)
WARNING = Finding("CPUs", Status.WARN, "few", 2, "Give it [more].", "host")
BROKEN = Finding("all-reduce", Status.FAIL, "the sum is wrong", None, "See NCCL.", "ranks")
LEFT_OUT = Finding("pairs", Status.SKIPPED, "left out by --quick")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Findings to give, and what the checks were asked."""
    seen: dict[str, Any] = {"findings": [GOOD, WARNING, LEFT_OUT]}
    real = checks.prepare

    def prepare(machine: Any, gpus: str, config: Any, occupied: Any, *, quick: bool) -> Any:
        seen.update(gpus=gpus, config=config, occupied=occupied, quick=quick)
        return real(machine, "cpu:1", config, occupied, quick=quick)

    monkeypatch.setattr(checks, "prepare", prepare)
    monkeypatch.setattr(checks, "run_checks", lambda context: iter(seen["findings"]))
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return seen


def test_one_line_each_with_remedy_and_summary(
    asked: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["pass", "disk", "fine"]
    assert lines[1].split()[:2] == ["warn", "CPUs"]
    assert lines[2].strip() == "→ Give it [more]."
    assert "1 passed, 1 warning, 0 failed, 1 skipped" in lines[-1]
    assert (asked["gpus"], asked["quick"]) == ("all", False)


def test_a_failure_leaves_with_1(asked: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    asked["findings"].append(BROKEN)
    assert run(["check", "--quick"]) == 1
    assert asked["quick"]
    assert "will not work" in capsys.readouterr().out


def test_json_is_one_value_with_every_finding(
    asked: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    asked["findings"].append(BROKEN)
    assert run(["check", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["version"], report["status"]) == (1, "fail")
    assert report["counts"] == {"pass": 1, "warn": 1, "fail": 1, "skipped": 1}
    assert report["findings"][0] == {
        "name": "disk",
        "status": "pass",
        "text": "fine",
        "value": {"free_bytes": 5},
        "remedy": "",
        "group": "host",
        "seconds": 0.5,
    }
    assert {"hostname", "devices", "torch_version"} <= set(report["machine"])
    assert report["machine"]["torch_version"] == torch.__version__


def test_a_config_is_read_first_and_bad_input_leaves_with_2(
    asked: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", "--model", "no.yaml"]) == 2
    assert "config" not in asked


def test_who_holds_a_device_here_is_handed_on(
    asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Machine.probe(simulate="2xH100")
    monkeypatch.setattr(preflight, "visible_machine", lambda: here)
    monkeypatch.setenv("DRUMLINE_LOCK_FOLDER", str(tmp_path / "locks"))
    with DeviceLocks(lock_folder(), [here.devices[1].uuid]):
        assert run(["check"]) == 0
    assert set(asked["occupied"]) == {here.devices[1].uuid}


def test_devices_that_are_not_there_are_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--gpus", "99,"]) == 2
    assert "99" in capsys.readouterr().err


def test_devices_that_nobody_holds_are_held_while_they_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOCK_FOLDER, str(tmp_path))
    uuids = ["GPU-a", "GPU-b"]
    devices = [SimpleNamespace(uuid=uuid) for uuid in (*uuids, None)]
    context: Any = SimpleNamespace(devices=devices, occupied={"GPU-b": "a training"})
    with held(context):
        assert {u: h.pid for u, h in holders(tmp_path, uuids).items()} == {"GPU-a": os.getpid()}
    assert holders(tmp_path, uuids) == {}
    with DeviceLocks(tmp_path, ["GPU-a"]), held(context):  # taken since: measured all the same
        assert set(holders(tmp_path, uuids)) == {"GPU-a"}
