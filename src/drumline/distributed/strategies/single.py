"""One device does the work: alone, or while other ranks only follow."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn

from drumline.config import Mode
from drumline.distributed.strategies.base import UNCUT, Split, WholeModel
from drumline.errors import BadInput

if TYPE_CHECKING:
    from drumline.distributed.world import World


class SingleDevice(WholeModel):
    """Mode `none`: one device holds everything."""

    mode = Mode.NONE
    rewraps = True

    def __init__(self, world: World | None = None) -> None:
        self.size = 1 if world is None else world.size

    def check(self, model: nn.Module, split: Split) -> None:
        """Several ranks that do not talk would each train a part of the data."""
        del model, split
        if self.size > 1:
            raise BadInput(
                f"distributed.mode none is for one process, and {self.size} were started.",
                remedy="Use mode auto or distributed, or start one process.",
            )

    def wrap(self, model: nn.Module, split: Split = UNCUT) -> nn.Module:
        """The model itself."""
        del split
        self.model = model
        return model

    def rewrap(self) -> nn.Module:
        """There is no wrapper."""
        return self.model

    def accumulate(self) -> AbstractContextManager[None]:
        """Nothing is ever sent."""
        return nullcontext()

    def reduce_gradients(self) -> None:
        """The local gradients are the whole."""


class OneOfMany(WholeModel):
    """Rank 0 does all the work and sends its gradients, so that the others stay equal to it.

    What `auto` comes to if no way of spreading can be set up and the config allows it.
    """

    mode = Mode.NONE

    def __init__(self, world: World) -> None:
        self.world = world

    def wrap(self, model: nn.Module, split: Split = UNCUT) -> nn.Module:
        """The model itself, with rank 0's weights."""
        del split
        self.model = model
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, 0)
        return model

    def shares(self, shares: tuple[int, ...]) -> tuple[int, ...]:
        """Everything to rank 0."""
        return (sum(shares), *(0 for _ in shares[1:]))

    def accumulate(self) -> AbstractContextManager[None]:
        """A backward never sends."""
        return nullcontext()

    def reduce_gradients(self) -> None:
        """Take rank 0's gradients, and its buffers."""
        parameters = self.parameters()
        used = torch.tensor([int(p.grad is not None) for p in parameters], device=self.world.device)
        dist.broadcast(used, 0)
        for parameter, is_used in zip(parameters, used.tolist(), strict=True):
            if is_used:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.broadcast(parameter.grad, 0)
        for buffer in self.model.buffers():
            dist.broadcast(buffer, 0)
