"""The steps that are timed and compared: those of a loop of the user's own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from drumline.training.batches import to_device
from drumline.training.performance.arithmetic import uses_tf32
from drumline.training.stability.tensors import tensors_in

Loss = Callable[[nn.Module, Any], Tensor]
_NARROW = {torch.float16: "fp16", torch.bfloat16: "bf16"}


class Workload(ABC):
    """Whole training steps on a few batches that are kept."""

    @abstractmethod
    def attempt(self) -> None:
        """One forward and backward, in which ranks wait for each other as little as possible: what
        fails here fails without leaving others behind in a collective. No gradient is left.
        """

    @abstractmethod
    def step(self, number: int) -> Tensor | float:
        """One step, to its update, on batch `number` modulo those that are kept; its loss."""

    @abstractmethod
    def arithmetic(self) -> str:
        """What the forward computes in: a key of `results.ROUNDING`."""


class LoopWorkload(Workload):
    """Steps of a plain loop.

    Args:
        model: What the loop calls, wrapped or not.
        optimizer: Its optimizer.
        loss: The loss of a batch: a scalar, or one value a sample.
        batches: As the loader gives them.
        device: Where the model is.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Loss,
        batches: Sequence[Any],
        device: torch.device,
    ) -> None:
        self.model, self.optimizer, self.device = model, optimizer, device
        self._loss, self.batches = loss, batches

    def attempt(self) -> None:
        """Without sending gradients, where torch's DDP wraps the model."""
        ddp = isinstance(self.model, DistributedDataParallel)
        self.optimizer.zero_grad(set_to_none=True)
        with self.model.no_sync() if ddp else nullcontext():  # type: ignore[operator]
            self._backward(self.batches[0])
        self.optimizer.zero_grad(set_to_none=True)

    def step(self, number: int) -> Tensor:
        """Forward, backward, update."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._backward(self.batches[number % len(self.batches)])
        self.optimizer.step()
        return loss

    def train_on(self, batch: Any) -> None:
        """A step on a batch that comes from a loader."""
        self.optimizer.zero_grad(set_to_none=True)
        self._backward(batch)
        self.optimizer.step()

    def arithmetic(self) -> str:
        """Looked up in one forward: the narrowest floating-point output of any module."""
        found: set[torch.dtype] = set()

        def look(module: nn.Module, inputs: Any, output: Any) -> None:
            del module, inputs
            found.update(t.dtype for t in tensors_in(output) if t.is_floating_point())

        handles = [module.register_forward_hook(look) for module in self.model.modules()]
        try:
            self.attempt()
        finally:
            for handle in handles:
                handle.remove()
        return name_of_arithmetic(found, self.device)

    def _backward(self, batch: Any) -> Tensor:
        loss = self._loss(self.model, to_device(batch, self.device)).mean()
        torch.autograd.backward(loss)
        return loss.detach()


def name_of_arithmetic(dtypes: set[torch.dtype], device: torch.device) -> str:
    """The name of the narrowest of some dtypes."""
    for dtype, name in _NARROW.items():
        if dtype in dtypes:
            return "bf16" if torch.bfloat16 in dtypes else name
    if torch.float32 in dtypes or not dtypes:
        return "tf32" if uses_tf32(device) else "fp32"
    return "fp64"
