"""How a model is spread over ranks: one class for each mode, behind one interface.

`base` says what the Trainer may ask of a mode; `choose` picks one, and the next if that fails.
"""

from drumline.distributed.strategies.base import UNCUT, HasState, Split, Strategy, WholeModel
from drumline.distributed.strategies.choose import Spread, build_strategy, candidates, spread_model
from drumline.distributed.strategies.data_parallel import ThreadedReplicas
from drumline.distributed.strategies.gather import gathered
from drumline.distributed.strategies.pieces import local
from drumline.distributed.strategies.pipeline.stages import cut_stages
from drumline.distributed.strategies.replicated import DataParallelReplicas
from drumline.distributed.strategies.rows import moments, set_rows
from drumline.distributed.strategies.sharded import Hybrid, Sharded
from drumline.distributed.strategies.single import OneOfMany, SingleDevice

__all__ = [
    "UNCUT",
    "DataParallelReplicas",
    "HasState",
    "Hybrid",
    "OneOfMany",
    "Sharded",
    "SingleDevice",
    "Split",
    "Spread",
    "Strategy",
    "ThreadedReplicas",
    "WholeModel",
    "build_strategy",
    "candidates",
    "cut_stages",
    "gathered",
    "local",
    "moments",
    "set_rows",
    "spread_model",
]
