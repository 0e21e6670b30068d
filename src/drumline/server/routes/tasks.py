"""Tasks, and the schema of a config for each, from which forms are made."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import Field

from drumline.config.section import task_names
from drumline.server.errors import NotFound
from drumline.server.problems import documented
from drumline.server.task_schemas import config_schema, summary_of
from drumline.server.views.common import View

router = APIRouter(tags=["tasks"])


class Task(View):
    """A kind of training."""

    name: str = Field(description="What a config's `task.name` says.")
    summary: str = Field(description="What it is, in a line.")


class Tasks(View):
    """All kinds of training."""

    tasks: list[Task] = Field(description="By name.")


class TaskDetail(Task):
    """A kind of training with the schema of its configs."""

    config_schema: dict[str, Any] = Field(
        description="JSON Schema of a whole config: every key with type, default and meaning."
    )


@router.get("/tasks")
def list_tasks() -> Tasks:
    """What can be trained."""
    return Tasks(tasks=[Task(name=name, summary=summary_of(name)) for name in task_names()])


@router.get("/tasks/{name}", responses=documented(404))
def get_task(name: str) -> TaskDetail:
    """One kind of training, and the JSON Schema of its configs."""
    if name not in task_names():
        raise NotFound(
            f"There is no task {name[:100]!r}.", remedy=f"There are: {', '.join(task_names())}."
        )
    return TaskDetail(name=name, summary=summary_of(name), config_schema=config_schema(name))
