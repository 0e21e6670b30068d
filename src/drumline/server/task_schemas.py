"""The JSON Schema of a whole config for one task, for forms and for editors."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from drumline.config import RunConfig
from drumline.config.section import task_config_class

_HIDDEN = ("run_dir", "runs_dir")
"""Keys that are the service's choice."""


@lru_cache(maxsize=64)
def config_schema(task: str) -> dict[str, Any]:
    """The schema of `RunConfig` with the keys of a registered task in their place."""
    whole = RunConfig.model_json_schema(mode="validation")
    own = task_config_class(task).model_json_schema(mode="validation")
    shared = whole.setdefault("$defs", {})
    for name, schema in own.pop("$defs", {}).items():
        shared.setdefault(name, schema)
    shared["Task"] = own
    own.get("properties", {}).get("name", {}).update(const=task)
    described = whole["properties"]["task"].get("description", "")
    whole["properties"]["task"] = {"$ref": "#/$defs/Task", "description": described}
    whole["required"] = sorted({*whole.get("required", ()), "task"})
    for key in _HIDDEN:
        whole["properties"].pop(key, None)
    return whole


def summary_of(task: str) -> str:
    """The first sentence of what a task's config says of itself."""
    told = " ".join((task_config_class(task).__doc__ or "").split())
    first, stop, _ = told.partition(". ")
    return first + stop.strip()
