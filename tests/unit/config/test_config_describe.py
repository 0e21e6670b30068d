"""The list of all keys, for people who ask what a config can say."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from pydantic import BaseModel, Field

from drumline.config import RunConfig, Section, TaskConfig
from drumline.config.describe import describe_config
from drumline.errors import ConfigError


class Depth(Section):
    """A section inside a task."""

    layers: list[int] = Field([1, 2], description="how many of each")


class DescribedTaskConfig(TaskConfig):
    """A task of this test."""

    size: int = Field(description="size of it")
    depth: Depth | None = Field(None, description="depth of it")


NAME = f"{__name__}:DescribedTaskConfig"


def leaves(model: type[BaseModel], prefix: str = "") -> list[str]:
    """All keys, found by walking the sections that the fields' annotations name."""
    found = []
    for name, field in model.model_fields.items():
        inner = [
            kind
            for kind in (field.annotation, *getattr(field.annotation, "__args__", ()))
            if isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not TaskConfig
        ]
        found += leaves(inner[0], f"{prefix}{name}.") if inner else [prefix + name]
    return found


def test_every_key_is_listed_once_with_type_default_and_meaning() -> None:
    keys = describe_config()
    assert [key.name for key in keys] == leaves(RunConfig)
    assert len({key.name for key in keys}) == len(keys)
    for key in keys:
        assert key.type and key.default and key.meaning, key


def test_the_keys_of_a_task_stand_in_the_place_of_task() -> None:
    keys = {key.name: key for key in describe_config(NAME)}
    assert "task" not in keys
    assert {name for name in keys if name.startswith("task.")} == {
        "task.name",
        "task.size",
        "task.depth.layers",
    }
    assert all(key.type and key.default and key.meaning for key in keys.values())
    assert keys["task.size"].default == "required"
    assert (keys["task.depth.layers"].type, keys["task.depth.layers"].default) == (
        "list of int",
        "[1, 2]",
    )


@pytest.mark.parametrize(
    ("name", "kind", "default"),
    [
        ("steps", "int or null", "null"),
        ("name", "text", "run"),
        ("precision", "fp64|fp32|tf32|bf16|fp16", "fp32"),
        ("distributed.mode", "auto|none|dataparallel|distributed|sharded|hybrid", "auto"),
        ("distributed.shares", "equal|measured or list of int", "equal"),
        ("distributed.find_unused_parameters", "bool", "false"),
        ("optimizer.betas", "(float, float)", "[0.9, 0.999]"),
        ("checkpoint.keep_best.goal", "min|max", "min"),
        ("runs_dir", "path", "runs"),
        ("logging.trackers", "list of tensorboard|wandb", "[]"),
    ],
)
def test_types_and_defaults_read_as_a_user_would_write_them(
    name: str, kind: str, default: str
) -> None:
    keys = {key.name: key for key in describe_config()}
    assert (keys[name].type, keys[name].default) == (kind, default)


def test_every_registered_task_is_described_whole() -> None:
    for key in describe_config("sae"):
        assert key.type and key.default and key.meaning, key


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(ConfigError, match="no such task"):
        describe_config("nothing-like-it")


def test_reading_configs_needs_no_torch() -> None:
    import subprocess

    code: Any = (
        "import sys; from drumline.config.describe import describe_config; describe_config('sae');"
        "import drumline.planning, drumline.run_directory; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_names_in_a_config_choose_the_sections_of_a_task() -> None:
    data = {"task": {"name": "clstm_ppo", "environment": {"name": "portfolio"}}}
    keys = {key.name: key for key in describe_config("clstm_ppo", data)}
    assert keys["task.environment.hmax"].default == "100.0"
    assert "task.environment.hmax" not in {key.name for key in describe_config("clstm_ppo")}
    data["task"]["environment"] = {"name": "nothing-like-it"}  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="no such environment"):
        describe_config("clstm_ppo", data)
