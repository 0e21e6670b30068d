"""The optimizer's update in one kernel for many parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from drumline.training.performance.snapshot import local_optimizer
from drumline.training.performance.switch import Subject, Switch


class FusedOptimizer(Switch):
    """Torch's fused implementation of an optimizer that has one."""

    name = "fused_optimizer"
    updates = True

    def __init__(self) -> None:
        self._before: list[dict[str, Any]] = []

    def why_not(self, subject: Subject) -> str | None:
        """An optimizer of torch's that has it, over ordinary floating-point parameters."""
        optimizer = local_optimizer(subject.optimizer)
        kind = type(optimizer)
        if "fused" not in optimizer.defaults or not kind.__module__.startswith("torch.optim"):
            return f"{kind.__name__} has no fused implementation"
        if all(group["fused"] for group in optimizer.param_groups):
            return "it is on already"
        if any(group.get("differentiable") for group in optimizer.param_groups):
            return "the optimizer is differentiable"
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if len({p.device_mesh if isinstance(p, DTensor) else None for p in parameters}) > 1:
            return "the parameters are on different meshes"
        if not all(p.is_floating_point() and p.device.type in ("cuda", "cpu") for p in parameters):
            return "a parameter is not a floating-point one on the CPU or a GPU"
        return None

    def apply(self, subject: Subject) -> None:
        """Set torch's flags; the counters of steps go where the fused kernel reads them."""
        optimizer = local_optimizer(subject.optimizer)
        self._before = [
            {flag: group.get(flag) for flag in ("fused", "foreach")}
            for group in optimizer.param_groups
        ]
        for group in optimizer.param_groups:
            group.update(fused=True, foreach=False)
        _place_counters(optimizer)

    def undo(self, subject: Subject) -> None:
        """Torch's flags as they were."""
        optimizer = local_optimizer(subject.optimizer)
        for group, flags in zip(optimizer.param_groups, self._before, strict=False):
            group.update(flags)
        self._before = []
        _place_counters(optimizer)


def _place_counters(optimizer: torch.optim.Optimizer) -> None:
    """Torch keeps `step` on the CPU, and with the parameter where the update is fused."""
    for group in optimizer.param_groups:
        beside = bool(group["fused"]) or bool(group.get("capturable"))
        for parameter in group["params"]:
            counter = optimizer.state.get(parameter, {}).get("step")
            if isinstance(counter, Tensor):
                place = parameter.device if beside else torch.device("cpu")
                dtype = torch.float32 if group["fused"] else counter.dtype
                optimizer.state[parameter]["step"] = counter.to(place, dtype)
