"""Naming the first tensor that turned non-finite, by repeating a micro-batch under observation.

Forward and backward are run again on the unwrapped model with hooks on every module. Nothing is
sent to other ranks, no gradient is touched (`torch.autograd.grad` accumulates nothing and so wakes
none of DDP's hooks), buffers and random states are as before afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from drumline.training.stability.tensors import is_finite, tensors_in, without_masks

LOSS = "loss"


@dataclass(frozen=True)
class BadTensor:
    """The first tensor that was not finite.

    Attributes:
        module: The module's name; "" is the model itself, `LOSS` what follows it.
        tensor: "input" (bad before any module touched it), "output", "weight" or "gradient".
        parameter: The weight's name within the module, where it is one or its gradient.
    """

    module: str
    tensor: str
    parameter: str = ""

    def __str__(self) -> str:
        where = self.module or "the model"
        if self.module == LOSS:
            where = "the loss function"
        what = {"gradient": f"gradient of {self.parameter or 'the input'}"}.get(self.tensor)
        what = what or (f"weight {self.parameter}" if self.tensor == "weight" else self.tensor)
        return f"the {what} of {where} was the first tensor that was not finite"


def first_bad_tensor(
    model: nn.Module, losses: Iterable[Callable[[], Tensor]], *, device: torch.device
) -> BadTensor | None:
    """The first non-finite tensor in the forwards and backwards of some micro-batches.

    Args:
        model: The unwrapped model, in the state the bad step began with.
        losses: For each micro-batch a function that seeds, runs the forward and gives the scaled
            loss, a scalar.
        device: Whose random state is to be kept.
    """
    with _as_before(model, device), _Observer(model) as observer:
        for loss in losses:
            observer.run(loss)
            if observer.found is not None:
                return observer.found
    return None


class _Observer:
    """Hooks on all modules; remembers the first bad tensor in the order of computation."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.found: BadTensor | None = None
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> _Observer:
        for name, module in self.model.named_modules():
            self._handles += [
                module.register_forward_pre_hook(self._before(name), with_kwargs=True),
                module.register_forward_hook(self._after(name)),
            ]
            for parameter, value in module.named_parameters(recurse=False):
                if value.requires_grad:
                    self._watch_gradient(value, BadTensor(name, "gradient", parameter))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def run(self, loss: Callable[[], Tensor]) -> None:
        """One micro-batch, forward and backward."""
        value = loss()
        self._note(value, BadTensor(LOSS, "output"))
        if self.found is None and value.requires_grad:
            torch.autograd.grad(value, self._parameters, allow_unused=True)

    def _before(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, options: Any) -> None:
            for parameter, weight in module.named_parameters(recurse=False):
                self._note(weight.detach(), BadTensor(name, "weight", parameter))
            for value in tensors_in((inputs, options)):
                self._note(without_masks(value.detach()), BadTensor(name, "input"))
                # A bad gradient of its input is made by the module's own backward.
                if value.requires_grad and not any(module.children()):
                    self._watch_gradient(value, BadTensor(name, "gradient"))

        return hook

    def _after(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            del module, inputs
            for value in tensors_in(output):
                self._note(value.detach(), BadTensor(name, "output"))

        return hook

    def _watch_gradient(self, value: Tensor, bad: BadTensor) -> None:
        hook: Any = value.register_hook
        self._handles.append(hook(lambda gradient: self._note(gradient, bad)))

    def _note(self, value: Tensor, bad: BadTensor) -> None:
        if self.found is None and not is_finite(value):
            self.found = bad


@contextmanager
def _as_before(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Buffers and random states afterwards as they were."""
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)
