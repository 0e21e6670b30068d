"""Mode `dataparallel`: one process, a thread for each device, through torch's nn.DataParallel."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

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
        self._replicas: _Replicas | None = None

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
        if not others:
            return model
        self._replicas = _Replicas(model, device_ids=[first, *others])
        self.overlaps = False  # when its last backward has ended a step has yet to drop gradients
        return self._replicas

    def accumulate(self) -> AbstractContextManager[None]:
        """A backward adds up over devices by itself."""
        return nullcontext()

    def reduce_gradients(self) -> None:
        """The first device's gradients are the whole; what was not used keeps none."""
        if self._replicas is not None:
            self._replicas.drop_unused()


class _Replicas(nn.DataParallel[nn.Module]):
    """Knows which parameters backwards have reached. Torch gives those that none has a gradient of
    zeros, by which an optimizer would let them decay.
    """

    def __init__(self, model: nn.Module, device_ids: Sequence[int]) -> None:
        super().__init__(model, device_ids=list(device_ids))
        self._reached: set[int] = set()

    def replicate(self, module: Any, device_ids: Sequence[int | torch.device]) -> list[Any]:
        """As torch does; each copy of a parameter tells when its gradient is formed."""
        replicas: list[nn.Module] = super().replicate(module, device_ids)
        for replica in replicas:
            for original, part in zip(module.modules(), replica.modules(), strict=True):
                copies: dict[str, torch.Tensor] = part._former_parameters  # type: ignore[assignment]
                for name, copy in copies.items():
                    if copy.requires_grad:
                        self._listen(copy, id(original._parameters[name]))
        return replicas

    def drop_unused(self) -> None:
        """Take the gradients of zeros away, once for all backwards of a step."""
        for parameter in self.module.parameters():
            if id(parameter) not in self._reached:
                parameter.grad = None
        self._reached.clear()

    def _listen(self, copy: torch.Tensor, parameter: int) -> None:
        def formed(gradient: torch.Tensor | None) -> None:
            if gradient is not None:  # it is for what the loss does not depend on
                self._reached.add(parameter)

        copy.register_hook(formed)  # type: ignore[no-untyped-call]
