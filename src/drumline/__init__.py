"""Drumline: PyTorch training on every device a team owns, with the same result on any number.

The names below are imported when first used, so that `import drumline` and the command line are
quick; torch is loaded only by what trains.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drumline.config import DistributedConfig, RunConfig
    from drumline.distributed import World
    from drumline.training import Task, Trainer
    from drumline.training.own_loop import OwnLoop, open_world

__version__ = "0.1.0"

_HOMES = {
    "DistributedConfig": "drumline.config",
    "RunConfig": "drumline.config",
    "OwnLoop": "drumline.training.own_loop",
    "World": "drumline.distributed",
    "open_world": "drumline.training.own_loop",
    "Task": "drumline.training",
    "Trainer": "drumline.training",
}
__all__ = ["DistributedConfig", "OwnLoop", "RunConfig", "Task", "Trainer", "World", "open_world"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'drumline' has no attribute {name!r}")
