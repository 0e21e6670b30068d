"""`drumline backtest`: what it asks for and what it prints."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drumline.cli import launching
from drumline.cli.main import run
from drumline.tasks.clstm_ppo.trading.report import Report, Strategy


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was asked for; the report is always the same."""
    asked: list[Any] = []
    values = np.array([[1.0, 1.1, 1.21, 1.1], [1.0, 1.0, 1.0, 1.0]])
    days = np.datetime64("2020-01-01") + np.arange(4)
    strategies = (
        Strategy("policy", values, np.full((2, 3), 0.1)),
        Strategy("buy and hold", values[:1], np.zeros((1, 3))),
    )
    report = Report(days, "test", ("A",), 0.001, strategies, ("A: a note",))

    def take(request: Any) -> Report:
        asked.append(request)
        return report

    monkeypatch.setattr(launching, "backtest", take)
    for name in ("first", "second"):
        (Path("runs") / name).mkdir(parents=True)
        (Path("runs") / name / "config.yaml").write_text("{}")
    return asked


def test_runs_and_keys_are_told_apart(requests: list[Any]) -> None:
    assert run(["backtest", "first", "second", "a.b=c", "--chart", "c.png"]) == 0
    (request,) = requests
    assert [path.name for path in request.runs] == ["first", "second"]
    assert request.overrides == ["a.b=c"]
    assert (request.checkpoint, request.chart) == ("last", Path("c.png"))


def test_means_and_spreads_are_printed(
    requests: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["backtest", "first"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (row,) = (number for number, line in enumerate(lines) if line.startswith("policy"))
    policy, deviations, held = (line.split() for line in lines[row : row + 3])
    assert policy[:3] == ["policy", "2", "5.0%"]  # 10 % and 0 %
    assert deviations[:2] == ["±", "7.1%"]
    assert held[:5] == ["buy", "and", "hold", "1", "10.0%"]
    assert not any("±" in line for line in lines[row + 2 : row + 4])
    assert any("A: a note" in line for line in lines)
    assert any("one try has none" in line for line in lines)


def test_json_is_one_value(requests: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["backtest", "first", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["strategies"]["policy"]["tries"] == 2


@pytest.mark.parametrize("words", [["a=b"], ["absent"], ["first", "--checkpoint", "nonsense"], []])
def test_bad_input(requests: list[Any], words: list[str]) -> None:
    assert run(["backtest", *words]) == 2
    assert not requests
