"""Optimizers of torch.optim from a config, and the learning rate as a function of the step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from drumline.config import OptimizerConfig, ScheduleConfig

Build = Callable[
    [Callable[..., torch.optim.Optimizer], list[nn.Parameter], dict[str, Any]],
    torch.optim.Optimizer,
]


def _plainly(
    kind: Callable[..., torch.optim.Optimizer],
    parameters: list[nn.Parameter],
    options: dict[str, Any],
) -> torch.optim.Optimizer:
    return kind(parameters, **options)


def build_optimizer(
    config: OptimizerConfig, model: nn.Module, build: Build = _plainly
) -> torch.optim.Optimizer:
    """The optimizer over the parameters of `model` that need gradients.

    Args:
        config: Which one.
        model: As the strategy has left it: a sharded model's parameters are its pieces, and those
            that another rank holds are on the meta device.
        build: Makes it from its class, parameters and options; a strategy's `build_optimizer`.
    """
    parameters = [p for p in model.parameters() if p.requires_grad and not p.is_meta]
    options: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay}
    options |= _implementation(config, parameters)
    if config.name == "sgd":
        return build(torch.optim.SGD, parameters, {"momentum": config.momentum, **options})
    kind = torch.optim.AdamW if config.name == "adamw" else torch.optim.Adam
    return build(kind, parameters, {"betas": config.betas, "eps": config.eps, **options})


def learning_rate_factor(config: ScheduleConfig, step: int, steps: int) -> float:
    """Learning rate of step `step` (from 0) of `steps`, as a fraction of its peak.

    A pure function of the step, so there is no scheduler whose state could be lost.
    """
    if step < config.warmup_steps:
        return (step + 1) / (config.warmup_steps + 1)
    decay = steps - config.warmup_steps if config.decay_steps is None else config.decay_steps
    if config.name == "constant" or decay < 1:
        return 1.0
    start = max(config.warmup_steps, steps - decay)
    done = min(1.0, max(0.0, (step - start) / max(1, steps - start)))
    if config.name == "cosine":
        done = 0.5 * (1 - math.cos(math.pi * done))
    return 1 - (1 - config.final_fraction) * done


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of all parameter groups."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def _implementation(config: OptimizerConfig, parameters: list[nn.Parameter]) -> dict[str, bool]:
    """Torch's flags. Fused covers floating-point parameters on CUDA and the CPU."""
    chosen = config.implementation
    if chosen == "auto":
        fusable = all(
            p.is_floating_point() and p.device.type in ("cuda", "cpu") for p in parameters
        )
        chosen = "fused" if fusable and parameters else "foreach"
    return {"fused": chosen == "fused", "foreach": chosen == "foreach"}
