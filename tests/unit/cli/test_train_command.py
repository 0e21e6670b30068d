import json
from pathlib import Path

import pytest

from drumline.cli import launching
from drumline.cli.main import run
from drumline.config import RunConfig

CONFIG = "name: tiny\nsteps: 10\nglobal_batch: 12\n"


class Trained:
    """Stands in for the launcher and keeps what it was asked for."""

    def __init__(self) -> None:
        self.config: RunConfig | None = None
        self.dry_run = False
        self.outcome = launching.Outcome("done", path=Path("runs/tiny"))

    def __call__(
        self, config: RunConfig, follower: object, *, dry_run: bool, resume: bool
    ) -> launching.Outcome:
        self.config, self.dry_run = config, dry_run
        return self.outcome


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Trained:
    stand_in = Trained()
    monkeypatch.setattr(launching, "train", stand_in)
    Path("c.yaml").write_text(CONFIG)
    return stand_in


def test_options_win_over_overrides_and_these_over_the_file(trained: Trained) -> None:
    arguments = ["steps=20", "optimizer.lr=3e-4", "devices=cpu", "--gpus", "2", "--run-dir", "r"]
    assert run(["train", "c.yaml", *arguments]) == 0
    assert trained.config is not None
    assert trained.config.steps == 20
    assert trained.config.optimizer.lr == 3e-4
    assert trained.config.devices == "2"
    assert trained.config.run_dir == Path("r")
    assert trained.config.global_batch == 12


def test_a_wrong_key_is_named_with_the_nearest_and_nothing_starts(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["train", "c.yaml", "global_bach=3", "steps=-1"]) == 2
    shown = capsys.readouterr().err
    assert "Did you mean global_batch?" in shown
    assert "steps = -1" in shown
    assert trained.config is None
    assert run(["train", "c.yaml", "global_bach=3", "--json"]) == 2
    problems = json.loads(capsys.readouterr().out)["error"]["problems"]
    assert [problem["key"] for problem in problems] == ["global_bach"]


@pytest.mark.parametrize("arguments", [[], ["missing.yaml"], ["c.yaml", "steps"]])
def test_bad_input_has_exit_code_2(trained: Trained, arguments: list[str]) -> None:
    assert run(["train", *arguments]) == 2
    assert trained.config is None


def test_resume_takes_the_runs_own_config_and_further_overrides(
    trained: Trained, made_run: type
) -> None:
    made_run("tiny-1", steps=40).run.write_config({"steps": 40, "global_batch": 6})
    assert run(["train", "--resume", "tiny", "steps=80"]) == 0
    assert trained.config is not None
    assert (trained.config.steps, trained.config.global_batch) == (80, 6)
    assert trained.config.run_dir == Path("runs/tiny-1")


def test_a_dry_run_prints_the_plan(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    plan = {"mode": "distributed", "world_size": 2, "shares": [9, 3], "reasons": ["as asked"]}
    trained.outcome = launching.Outcome("planned", plan=plan)
    assert run(["train", "c.yaml", "--dry-run"]) == 0
    assert trained.dry_run
    shown = capsys.readouterr().out
    assert "2 ranks" in shown
    assert "because as asked" in shown
    assert run(["train", "c.yaml", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"] == plan


def test_help_on_the_config_names_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", "--help-config", "--json"]) == 0
    keys = {key["name"]: key for key in json.loads(capsys.readouterr().out)}
    assert keys["optimizer.lr"]["default"] == "0.001"
    assert run(["train", "--help-config"]) == 0
    shown = capsys.readouterr().out
    assert all(name.rpartition(".")[2] in shown for name in keys)


def test_help_on_an_unknown_task_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", "--help-config", "no_such_task"]) == 2
    assert "no such task" in capsys.readouterr().err
