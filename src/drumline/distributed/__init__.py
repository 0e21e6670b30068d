"""One world for a rank: its device, its peers, the votes, and how the model is spread.

Strategies are imported when first used: they bring much of torch that what only measures ranks, as
`drumline check` does, can do without.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from drumline.distributed.control import Ballot, ControlPlane, LocalControl, StoreControl
from drumline.distributed.device_stats import DeviceStats
from drumline.distributed.failures import is_communication_failure
from drumline.distributed.world import World, open_world

if TYPE_CHECKING:
    from drumline.distributed.strategies import (
        UNCUT,
        DataParallelReplicas,
        HasState,
        Hybrid,
        Sharded,
        SingleDevice,
        Split,
        Spread,
        Strategy,
        build_strategy,
        candidates,
        cut_stages,
        gathered,
        local,
        moments,
        set_rows,
        spread_model,
    )

__all__ = [
    "UNCUT",
    "Ballot",
    "ControlPlane",
    "DataParallelReplicas",
    "DeviceStats",
    "HasState",
    "Hybrid",
    "LocalControl",
    "Sharded",
    "SingleDevice",
    "Split",
    "Spread",
    "StoreControl",
    "Strategy",
    "World",
    "build_strategy",
    "candidates",
    "cut_stages",
    "gathered",
    "is_communication_failure",
    "local",
    "moments",
    "open_world",
    "set_rows",
    "spread_model",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("drumline.distributed.strategies"), name)
    raise AttributeError(f"module 'drumline.distributed' has no attribute {name!r}")
