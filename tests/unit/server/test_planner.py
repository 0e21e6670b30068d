"""Plans of requests: in a process of their own, few at a time, ended in time, without the
service's secrets.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from drumline.config.service import ServiceSettings
from drumline.database import open_database
from drumline.errors import LaunchError
from drumline.hardware import Machine
from drumline.server import planner
from drumline.server.errors import Overloaded, TookTooLong
from drumline.server.planner import Planner
from service_app import TRAINING, App

MACHINE = Machine.probe(simulate="2xH100")


def test_a_plan_is_what_the_command_gives_and_makes_nothing(
    sqlite_url: str, tmp_path: Path
) -> None:
    app = App(open_database(sqlite_url), tmp_path)
    made = app.client.post("/api/v1/trainings/plan", json={"config": TRAINING, "gpus": 2}).json()
    assert (made["mode"], made["world_size"], made["shares"]) == ("distributed", 2, [8, 8])
    assert [device["simulated"] for device in made["devices"]] == [True, True]
    assert (made["host"], made["batch"]["accumulation"]) == ("box", 1)
    assert app.client.get("/api/v1/trainings").json()["items"] == []
    assert not (tmp_path / "runs").exists()
    refused = app.client.post("/api/v1/trainings/plan", json={"config": TRAINING, "gpus": 9})
    assert (refused.status_code, refused.json()["code"]) == (422, "bad_devices")


def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    """Have the planner run this program in the place of its own."""
    (tmp_path / "stand_in.py").write_text(text)
    monkeypatch.setattr(planner, "_MODULE", "stand_in")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def made(found: Planner) -> Any:
    return found.plan({}, MACHINE, ())


def test_one_that_takes_too_long_is_ended_with_all_it_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    child = "import subprocess,sys; c=subprocess.Popen([sys.executable,'-c','input()'],stdin=-1)"
    fake(monkeypatch, tmp_path, f"{child}\nopen(r'{tmp_path}/pid','w').write(str(c.pid))\nc.wait()")
    with pytest.raises(TookTooLong):
        made(Planner(ServiceSettings(), timeout_s=5))
    pid = int((tmp_path / "pid").read_text())
    while _lives(pid):  # until it is seen that SIGKILL came
        os.sched_yield()


def _lives(pid: int) -> bool:
    """A zombie has ended, and is not ours to reap."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_more_than_may_be_at_a_time_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "begun")
    os.mkfifo(tmp_path / "go")
    fake(
        monkeypatch,
        tmp_path,
        f"open(r'{tmp_path}/begun','w').write('x')\nopen(r'{tmp_path}/go').read()\n"
        'print(\'{"plan": {"mode": "none"}}\')',
    )
    found = Planner(ServiceSettings(), at_a_time=1)
    answers: list[Any] = []
    first = threading.Thread(target=lambda: answers.append(made(found)))
    first.start()
    (tmp_path / "begun").read_text()
    with pytest.raises(Overloaded):
        made(found)
    (tmp_path / "go").write_text("x")
    first.join()
    assert answers == [{"mode": "none"}]


def test_one_that_dies_says_so_without_what_it_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fake(monkeypatch, tmp_path, "raise SystemExit('an inside')")
    with pytest.raises(LaunchError) as caught:
        made(Planner(ServiceSettings()))
    assert "inside" not in str(caught.value)
    assert "an inside" in caplog.text


def test_it_knows_no_secret_of_the_service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DRUMLINE_DATABASE_URL", "postgresql://a:hunter2@b/c")
    monkeypatch.setenv("WANDB_API_KEY", "hunter2")
    text = "import json,os\nprint(json.dumps({'plan': dict(os.environ)}))"
    fake(monkeypatch, tmp_path, text)
    seen = made(Planner(ServiceSettings()))
    assert "PATH" in seen and "hunter2" not in str(seen)


def test_the_service_needs_no_torch() -> None:
    program = (
        "import sys\n"
        "import drumline.server.serving, drumline.server.routes, drumline.server.lifecycle\n"
        "from drumline.server.task_schemas import config_schema\n"
        "from drumline.config.section import task_names\n"
        "assert [config_schema(name) for name in task_names()]\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
