"""A user's own task: its keys, in a module that needs no torch."""

from __future__ import annotations

from typing import ClassVar

from drumline.config import TaskConfig


class StackedConfig(TaskConfig):
    """A stack of square layers."""

    implementation: ClassVar[str] = "stacked_task:Stacked"
    layers: int = 1
    width: int = 8
