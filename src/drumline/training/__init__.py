"""The one Trainer, and the seams through which tasks, data, steps and watchers enter it."""

from drumline.training.order import SampleOrder, mix
from drumline.training.source import Cursor, MapSource, ShareOfStep, Source, StepBatch
from drumline.training.task import Losses, Setup, Task
from drumline.training.trainer import Result, Trainer

__all__ = [
    "Cursor",
    "Losses",
    "MapSource",
    "Result",
    "SampleOrder",
    "Setup",
    "ShareOfStep",
    "Source",
    "StepBatch",
    "Task",
    "Trainer",
    "mix",
]
