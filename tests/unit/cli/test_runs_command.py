import json
import os
from pathlib import Path
from typing import Any

import pytest

from drumline.cli.main import run
from drumline.cli.state import SILENT_AFTER_S, TAIL_BYTES, read_state


def listed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert run(["runs", "--json"]) == 0
    states: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return states


def test_no_runs_is_not_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(capsys) == []
    assert run(["runs"]) == 0
    assert "There are no runs" in capsys.readouterr().out


def test_a_folder_that_is_not_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["runs", "elsewhere"]) == 2
    assert "elsewhere" in capsys.readouterr().err


def test_each_run_with_its_state(made_run: type, capsys: pytest.CaptureFixture[str]) -> None:
    for position, (name, status) in enumerate([("a", "done"), ("b", "stopped"), ("c", "failed")]):
        made = made_run(name).train().end(status)
        os.utime(made.run.config_path, (position, position))
    made_run("d").train(last=30)
    states = listed(capsys)
    assert [state["name"] for state in states] == ["d", "c", "b", "a"]
    assert [state["status"] for state in states] == ["running", "failed", "stopped", "done"]
    assert [state["step"] for state in states] == [30, 40, 40, 40]
    assert states[3]["metric"] == "fvu"
    assert states[3]["value"] == 0.025
    assert run(["runs"]) == 0
    shown = capsys.readouterr().out
    assert "30/40" in shown
    assert "fvu 0.025" in shown


def test_the_metric_is_the_one_that_the_best_is_kept_by(
    made_run: type, capsys: pytest.CaptureFixture[str]
) -> None:
    made_run("a", checkpoint={"keep_best": {"metric": "explained_loss"}}).train()
    assert listed(capsys)[0]["metric"] == "explained_loss"
    assert listed(capsys)[0]["value"] == 1.0


def test_a_run_without_result_and_events_for_long_is_silent(made_run: type) -> None:
    made = made_run("a").train()
    last = made.run.events()[-1]["t"]
    assert read_state(made.run, last + SILENT_AFTER_S - 1).status == "running"
    assert read_state(made.run, last + SILENT_AFTER_S + 1).status == "silent"


def test_a_resumed_run_is_running_although_it_has_an_older_result(
    made_run: type, capsys: pytest.CaptureFixture[str]
) -> None:
    made = made_run("a").train(last=30).end("stopped", step=30)
    made.log.emit("attempt_started", world_size=1, resumed_from=30)
    assert listed(capsys)[0]["status"] == "running"


def test_size_is_the_sum_of_all_files(made_run: type) -> None:
    made = made_run("a")
    before = read_state(made.run, 0).size_bytes
    (made.run.checkpoints_path / "step-1").mkdir(parents=True)
    (made.run.checkpoints_path / "step-1" / "model.safetensors").write_bytes(bytes(12_345))
    assert read_state(made.run, 0).size_bytes == before + 12_345


def test_the_end_of_a_long_log_is_enough(made_run: type) -> None:
    made = made_run("a")
    while made.run.events_path.stat().st_size < 2 * TAIL_BYTES:
        made.log.emit("warning", message="x" * 10_000)
    made.log.emit("step", step=7, steps=40, loss=1.0)
    assert read_state(made.run, 0).step == 7


def test_damaged_files_do_not_hide_a_run(
    made_run: type, capsys: pytest.CaptureFixture[str]
) -> None:
    made = made_run("a").train()
    made.run.config_path.write_text("steps: [")
    made.run.result_path.write_text('{"status": "do')
    with made.run.events_path.open("a") as file:
        file.write('{"v": 1, "kind": "step", "step": 9')
    state = listed(capsys)[0]
    assert (state["status"], state["step"], state["task"]) == ("running", 40, "")


def test_a_folder_without_a_config_is_not_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs/cache").mkdir(parents=True)
    assert listed(capsys) == []
