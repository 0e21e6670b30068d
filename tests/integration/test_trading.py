"""Trading from the command line: training on a file of prices, then a backtest of two seeds."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from real_commands import drumline

from drumline.cli.main import run

TASK = {
    "name": "clstm_ppo",
    "environment": {
        "name": "portfolio",
        "data": "prices.csv",
        "train_until": "2010-08-31",
        "actions": "weights",
        "episode_days": 30,
    },
    "environments": 4,
    "rollout_steps": 16,
    "rollout_epochs": 2,
    "total_steps": 128,
    "policy": {"hidden": 8, "heads": [8]},
    "evaluation": {"episodes": 1},
}


def write_prices(path: Path) -> None:
    """Closes of three stocks on 365 days."""
    random = np.random.default_rng(4)
    close = 20 * np.exp(np.cumsum(random.normal(0, 0.02, (365, 3)), axis=0))
    days = np.datetime64("2010-01-01") + np.arange(365)
    rows = [",".join([str(day), *map(str, row)]) for day, row in zip(days, close, strict=True)]
    path.write_text("\n".join(["date,A,B,C", *rows]))


def told_by(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """What a command prints with --json, run in this process, which spares its start."""
    run([*words, "--json"])
    return json.loads(capsys.readouterr().out)


def test_a_policy_is_trained_and_traded_on_later_days(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_prices(tmp_path / "prices.csv")
    (tmp_path / "trading.json").write_text(json.dumps({"task": TASK, "global_batch": 32}))
    for seed in (0, 1):
        options = (f"seed={seed}", f"run_dir=runs/seed-{seed}", "--gpus", f"cpu:{seed + 1}")
        drumline(tmp_path, "train", "trading.json", *options)
    told = told_by(capsys, "backtest", "seed-0", "seed-1", "--chart", "chart.png")
    assert (told["use"], told["first_day"], told["last_day"]) == (
        *("test", "2010-09-01", "2010-12-31"),
    )
    assert told["symbols"] == ["A", "B", "C"]
    tries = {name: found["tries"] for name, found in told["strategies"].items()}
    assert tries.pop("policy") == 2
    assert tries.pop("random") == 20
    assert tries == {"buy and hold": 1, "equal weight": 1, "equal weight, stop": 1}
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")

    alone = told_by(capsys, "backtest", "seed-1")
    evaluated = json.loads((tmp_path / "runs/seed-1/result.json").read_text())["metrics"]
    found = alone["strategies"]["policy"]["measures"]["cumulative_return"]
    assert found["deviation"] is None
    # The reward is 1 for every percent of the first cash.
    assert found["mean"] == pytest.approx(evaluated["episode_return"] / 100, rel=1e-3)

    for override, problem in {
        "task.environment.evaluated_on=validation": "There are no validation days",
        "task.environment.data=absent.csv": "there is no such file",
    }.items():
        refused = told_by(capsys, "backtest", "seed-0", override)
        assert problem in refused["error"]["message"]


def test_a_new_policy_takes_over_every_quarter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_prices(tmp_path / "prices.csv")
    (tmp_path / "small.json").write_text(json.dumps({"task": TASK, "global_batch": 32}))
    words = ("walk-forward", "small.json", "total_steps=64", "--gpus", "cpu")
    told = told_by(capsys, *words)
    assert (told["first_day"], told["last_day"]) == ("2010-09-01", "2010-12-31")
    assert told["strategies"]["policies in turn"]["tries"] == 1
    folders = sorted((tmp_path / "runs/small-by-quarter").iterdir())
    assert [folder.name for folder in folders] == ["2010-Q3", "2010-Q4"]
    configs = [yaml.safe_load((folder / "config.yaml").read_text()) for folder in folders]
    until = [str(config["task"]["environment"]["train_until"]) for config in configs]
    assert until == ["2010-08-31", "2010-09-30"]
    assert told_by(capsys, *words) == told  # what is done is not trained again
    other = told_by(capsys, *words, "gamma=0.5")
    assert "2010-Q3 holds another run: its task differ" in other["error"]["message"]
