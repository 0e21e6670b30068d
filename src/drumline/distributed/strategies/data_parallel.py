"""Mode `dataparallel`: one process, a thread for each device, through torch's nn.DataParallel."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import nn

from drumline.config import Mode
from drumline.distributed.strategies.base import UNCUT, Split, WholeModel
from drumline.errors import BadInput

if TYPE_CHECKING:
    from drumline.distributed.world import World


class ThreadedReplicas(WholeModel):
    """Copies the model to every visible device at every forward; slow, for code that cannot be
    started once a device. On the CPU it is the model itself.
    """

    mode = Mode.DATAPARALLEL

    def __init__(self, world: World) -> None:
        self.world = world

    def check(self, model: nn.Module, split: Split) -> None:
        """It is one process by nature."""
        del model, split
        if self.world.size > 1:
            raise BadInput(
                f"distributed.mode dataparallel is one process, and {self.world.size} were "
                "started.",
                remedy="Start one process, or use mode distributed.",
            )

    def wrap(self, model: nn.Module, split: Split = UNCUT) -> nn.Module:
        """The model in DataParallel over all visible devices, this one first."""
        del split
        self.model = model
        if self.world.device.type != "cuda":
            return model
        first = self.world.device.index
        others = [number for number in range(torch.cuda.device_count()) if number != first]
        return nn.DataParallel(model, device_ids=[first, *others])

    def accumulate(self) -> AbstractContextManager[None]:
        """A backward adds up over devices by itself."""
        return nullcontext()

    def reduce_gradients(self) -> None:
        """The first device's gradients are the whole."""
