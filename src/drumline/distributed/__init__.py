"""One world for a rank: its device, its peers, the votes, and how the model is spread."""

from drumline.distributed.control import Ballot, ControlPlane, LocalControl, StoreControl
from drumline.distributed.device_stats import DeviceStats
from drumline.distributed.failures import is_communication_failure
from drumline.distributed.strategy import (
    DataParallelReplicas,
    SingleDevice,
    Strategy,
    build_strategy,
)
from drumline.distributed.world import World, open_world

__all__ = [
    "Ballot",
    "ControlPlane",
    "DataParallelReplicas",
    "DeviceStats",
    "LocalControl",
    "SingleDevice",
    "StoreControl",
    "Strategy",
    "World",
    "build_strategy",
    "is_communication_failure",
    "open_world",
]
