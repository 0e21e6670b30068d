"""`optimize`: find out which switches make this model's steps faster here, and leave those on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from drumline.distributed import ControlPlane, LocalControl, World
from drumline.errors import BadInput
from drumline.training.own_loop.loader import share_weights
from drumline.training.performance import loading
from drumline.training.performance.arithmetic import TF32, CudnnAutotune
from drumline.training.performance.compiled import Compile, CudaGraphs
from drumline.training.performance.fused import FusedOptimizer
from drumline.training.performance.layout import ChannelsLast
from drumline.training.performance.loader_feed import LoaderFeed
from drumline.training.performance.report import Report
from drumline.training.performance.snapshot import Snapshot
from drumline.training.performance.switch import Subject, Switch
from drumline.training.performance.timing import Rules
from drumline.training.performance.trial import Bench
from drumline.training.performance.workload import LoopWorkload, Loss


def optimize(
    model: nn.Module,
    loader: Any,
    optimizer: torch.optim.Optimizer,
    loss: Loss,
    *,
    world: World | None = None,
    allow_tf32: bool = False,
    switches: Sequence[Switch] | None = None,
    batches: Sequence[Any] | None = None,
    rules: Rules | None = None,
) -> Report:
    """Try switches on real steps, keep those that are faster and change nothing, undo the others.

    Model, loader and optimizer are changed in place and used as before. Weights, buffers,
    gradients, optimizer state, random states and the loader's position are afterwards, bit for
    bit, what they were. What fails inside a switch is reported and never raised.

    Args:
        model: On its device, in training mode; before or after it is wrapped.
        loader: A DataLoader; as optimizer, before `world.prepare`.
        optimizer: Over the model's parameters.
        loss: `loss(model, batch)`: a scalar, or one value a sample.
        world: If several ranks train together: all call this and come to the same decisions.
        allow_tf32: Whether TF32 products may be used, which is a change of precision.
        switches: What to try, in this order; by default all.
        batches: What to measure on, instead of the loader's first; needed where the loader's
            cannot be read twice.
        rules: How it is measured, and what gain counts.

    Raises:
        BadInput: If there is nothing to measure on, or the model is not on the world's device.
    """
    began = time.perf_counter()
    rules = rules or Rules()
    control: ControlPlane = LocalControl() if world is None else world.control
    device = _device_of(model, world)
    feed = LoaderFeed(loader, _share(world), device)
    kept = _batches(feed, batches, rules.compared_steps)
    workload = LoopWorkload(model, optimizer, loss, kept, device)
    feed.workload = workload
    subject = _subject(model, optimizer, device)
    snapshot = Snapshot(subject.model, optimizer)
    model.train()
    bench = Bench(subject, workload, snapshot, control, rules)
    try:
        bench.prepare()
        tried = all_switches(allow_tf32=allow_tf32) if switches is None else switches
        rows = [bench.attempt(switch) for switch in tried]
        if switches is None:
            rows.append(loading.tune(feed, control, rules, bench.wait))
        return bench.report(rows, began)
    finally:
        bench.close()


def all_switches(*, allow_tf32: bool) -> list[Switch]:
    """Those of a model and its optimizer, in the order they are tried."""
    compiled = Compile()
    return [
        TF32(allowed=allow_tf32),
        CudnnAutotune(),
        ChannelsLast(),
        FusedOptimizer(),
        compiled,
        CudaGraphs(compiled),
    ]


def _share(world: World | None) -> tuple[int, Sequence[int]]:
    return (0, (1,)) if world is None else (world.rank, share_weights(world))


def _device_of(model: nn.Module, world: World | None) -> torch.device:
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    if world is not None and device.type != world.device.type:
        raise BadInput(
            f"The model is on {device}, and this rank's device is {world.device}.",
            remedy="Move it there before: model.to(world.device).",
        )
    return device


def _batches(feed: LoaderFeed, given: Sequence[Any] | None, count: int) -> list[Any]:
    found = list(given) if given is not None else []
    if given is None and feed.why_not() is None:
        found = feed.first(count)
    if not found:
        raise BadInput(
            f"There is no batch to measure on: {feed.why_not() or 'the loader has none'}.",
            remedy="Give some: optimize(..., batches=[...]).",
        )
    return found


def _subject(model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> Subject:
    if isinstance(model, DistributedDataParallel | DataParallel):
        wrapper = type(model).__name__
        fixed = f"the model is in {wrapper} already, which knows its layout"
        return Subject(model.module, optimizer, device, fixed_layout=fixed)
    return Subject(model, optimizer, device)
