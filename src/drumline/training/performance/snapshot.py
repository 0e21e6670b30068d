"""The state of a model, its optimizer and the random generators, taken and put back bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from drumline.distributed.strategies.pieces import local
from drumline.training.state import Stateful, random_state, set_random_state

SWITCHED = ("params", "foreach", "fused")
"""Entries of an optimizer's groups that are no state: a switch sets them."""


class Snapshot:
    """Weights, buffers, gradients, modes, the optimizer's state and options, random states.

    This rank's pieces where a model is sharded. Copies are kept on the CPU. Weights are put back
    into the tensors that are there now, whatever their layout.

    Gradients that were there are set apart; `give_back` brings them back.

    Args:
        model: Its parameters and buffers, and what its modules give as extra state.
        optimizer: Its state and options.
        more: What else has a state to put back.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, more: Sequence[Stateful] = ()
    ) -> None:
        tensors = {id(t): t for t in [*model.parameters(), *model.buffers()]}
        self._tensors = [(t, local(t.detach()).to("cpu", copy=True)) for t in tensors.values()]
        self._gradients = [(p, p.grad) for p in model.parameters()]
        self._modes = [(module, module.training) for module in model.modules()]
        self._extra = [(m, copy.deepcopy(m.get_extra_state())) for m in _with_extra_state(model)]
        self._optimizer = _OptimizerSnapshot(optimizer)
        self._more = [(part, copy.deepcopy(part.state_dict())) for part in more]
        self._random = random_state()
        for parameter, _ in self._gradients:
            parameter.grad = None

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back but the gradients: there are none."""
        for tensor, saved in self._tensors:
            local(tensor).copy_(saved)
        for parameter, _ in self._gradients:
            parameter.grad = None
        for module, training in self._modes:
            module.training = training
        for module, extra in self._extra:
            module.set_extra_state(copy.deepcopy(extra))
        self._optimizer.restore()
        for part, state in self._more:
            part.load_state_dict(copy.deepcopy(state))
        set_random_state(self._random)

    def give_back(self) -> None:
        """Put everything back, for good."""
        self.restore()
        for parameter, gradient in self._gradients:
            parameter.grad = gradient


class _OptimizerSnapshot:
    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = local_optimizer(optimizer)
        self._state = {
            parameter: {key: _saved(value) for key, value in values.items()}
            for parameter, values in self._optimizer.state.items()
        }
        self._groups = [
            {key: _saved(value) for key, value in group.items() if key not in SWITCHED}
            for group in self._optimizer.param_groups
        ]

    def restore(self) -> None:
        live = self._optimizer.state
        for parameter in [p for p in live if p not in self._state]:
            del live[parameter]
        for parameter, values in self._state.items():
            _put_back(live[parameter], values)
        for group, values in zip(self._optimizer.param_groups, self._groups, strict=True):
            _put_back(group, values)


def local_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer that holds this rank's state: ZeroRedundancyOptimizer has one inside."""
    inner = getattr(optimizer, "optim", None)
    return inner if isinstance(inner, torch.optim.Optimizer) else optimizer


def _saved(value: Any) -> Any:
    if isinstance(value, Tensor):
        return local(value.detach()).to("cpu", copy=True)
    return copy.deepcopy(value)


def _put_back(live: dict[str, Any], saved: dict[str, Any]) -> None:
    for key, value in saved.items():
        if isinstance(value, Tensor) and isinstance(live.get(key), Tensor):
            local(live[key]).copy_(value)
        else:
            live[key] = copy.deepcopy(value)
    for key in [key for key in live if key not in saved and key not in SWITCHED]:
        del live[key]


def _with_extra_state(model: nn.Module) -> list[nn.Module]:
    return [
        module
        for module in model.modules()
        if type(module).get_extra_state is not nn.Module.get_extra_state
    ]
