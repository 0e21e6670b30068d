"""One world for a rank: its device, its peers, the votes, and how the model is spread."""

from drumline.distributed.control import Ballot, ControlPlane, LocalControl, StoreControl
from drumline.distributed.device_stats import DeviceStats
from drumline.distributed.failures import is_communication_failure
from drumline.distributed.strategies import (
    UNCUT,
    DataParallelReplicas,
    HasState,
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
from drumline.distributed.world import World, open_world

__all__ = [
    "UNCUT",
    "Ballot",
    "ControlPlane",
    "DataParallelReplicas",
    "DeviceStats",
    "HasState",
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
