"""What the terminal prints in moments that a user meets early on."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from drumline.cli.launching import Outcome
from drumline.cli.main import run
from drumline.cli.outcome import finish
from drumline.cli.progress import ProgressView
from drumline.cli.summary import Summary

CONFIG = """
steps: 4
global_batch: 8
devices: cpu:2
task: {name: sae, activations: acts.npy, latents: 16, k: 2}
"""


@pytest.fixture
def config() -> str:
    rows = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
    np.save("acts.npy", rows)
    Path("sae.yaml").write_text(CONFIG)
    return "sae.yaml"


def test_a_dry_run_shows_each_rank_and_why(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", config, "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert text.count("CPU process") == 3  # the headline and one row for each of two ranks
    assert "because devices: cpu:2 as asked" in text
    assert "None" not in text


def test_a_checkpoint_that_was_dropped_says_so(
    made_run: type, capsys: pytest.CaptureFixture[str]
) -> None:
    made = made_run("mine")
    for step in (10, 20):
        folder = made.run.checkpoints_path.resolve() / f"step-{step}"
        made.log.emit("checkpoint", step=step, path=str(folder), bytes=1, seconds=0.0)
    folder.mkdir(parents=True)
    assert run(["show", "mine"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "0.0 s" in line]
    assert [row[-1] for row in rows] == ["(dropped)", "step-20"]


def test_a_list_on_a_narrow_terminal_keeps_names_whole(
    made_run: type, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "smollm2-layer15-20260101-000000-abc"
    made_run(name).train().end("done")
    monkeypatch.setenv("COLUMNS", "76")
    assert run(["runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert name in lines[1]
    assert "fvu 0.025" in lines[1]


def test_curves_before_a_resume_stay() -> None:
    events = [
        {"kind": "run_started", "step": 0},
        {"kind": "attempt_started", "attempt": 0},
        *({"kind": "step", "step": step, "loss": float(step)} for step in (10, 20, 30)),
        {"kind": "attempt_started", "attempt": 1},
        {"kind": "run_started", "step": 20},
        {"kind": "step", "step": 40, "loss": 40.0},
    ]
    summary = Summary()
    summary.feed(events)
    assert summary.curves["loss"] == {10: 10.0, 20: 20.0, 40: 40.0}


def test_one_failure_of_all_ranks_is_said_once() -> None:
    shown = io.StringIO()
    view = ProgressView(Console(file=shown, width=100))
    view.feed({"kind": "rank_failed", "attempt": 0, "rank": r, "message": "no k"} for r in range(8))
    view.feed([{"kind": "rank_failed", "attempt": 1, "rank": 3, "message": "no k"}])
    assert shown.getvalue().count("no k") == 2


def test_a_rank_other_than_the_first_prints_no_result(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = Outcome("done", metrics={"fvu": 0.1}, path=Path("runs/x"), reports=False)
    for as_json in (False, True):
        with pytest.raises(BaseException, match="0"):
            finish(outcome, as_json=as_json)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("change", ["task.k=3", "seed=1", "optimizer.lr=0.5"])
def test_another_config_does_not_overwrite_a_run(
    change: str, config: str, made_run: type, capsys: pytest.CaptureFixture[str]
) -> None:
    from drumline.config import load_config

    made = made_run("mine")
    made.run.write_config(load_config(Path(config)).model_dump(mode="json"))
    before = made.run.config_path.read_bytes()
    assert run(["train", config, "run_dir=runs/mine", change, "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["values"]["differing"] == [change.partition("=")[0].partition(".")[0]]
    assert made.run.config_path.read_bytes() == before


def test_the_same_config_on_other_devices_is_the_same_run(
    config: str, made_run: type, capsys: pytest.CaptureFixture[str]
) -> None:
    from drumline.config import load_config

    made_run("mine").run.write_config(load_config(Path(config)).model_dump(mode="json"))
    changes = ["devices=cpu:3", "steps=9", "micro_batch=1"]
    assert run(["train", config, "run_dir=runs/mine", *changes, "--dry-run"]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpus", "0"], "0 devices were asked for."),
        (["precision=fp8"], "precision = 'fp8': no such value. Use one of: 'fp64', 'fp32'"),
        (["task.name=squares:Config"], "from an installed package or a folder on PYTHONPATH"),
    ],
)
def test_a_wrong_value_is_answered_once_and_with_a_way_out(
    words: list[str], said: str, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if words[0] == "--gpus":
        Path(config).write_text(CONFIG.replace("devices: cpu:2", ""))
    assert run(["train", config, "--dry-run", *words]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert error.count(said) == 1
