"""Counting what a step costs without a GPU: `python -m drumline.bench.workload_trace`, with a
config as JSON on standard input and the counts, with the sources that gave them, as JSON on
standard output.

The task's own model and loss run under fake tensors, which know shapes and hold no data, so a
model of any size is traced in seconds. A task whose shapes depend on its data is traced with real
tensors and few samples instead. Two numbers of samples tell what grows with samples and what is
paid once a micro-batch.

Counted are the matrix products (torch's FlopCounterMode) and, operator by operator, the bytes of
what goes in and comes out; an operator that only looks up rows counts what comes out, twice. What
the counts do not know: kernels that CUDA has and the CPU does not, fusion, and caches.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from traceback import format_exception_only
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import FlopCounterMode

from drumline.bench.sources import loaded_sources
from drumline.config import ClusterEnvironment, RunConfig, parse_config
from drumline.config.section import import_object
from drumline.distributed import World
from drumline.distributed.control import LocalControl
from drumline.distributed.strategies.summation import parcels_of
from drumline.distributed.strategies.units import find_units
from drumline.errors import BadInput
from drumline.events import EventLog
from drumline.planning.workload import Exchange, Workload
from drumline.training.optimizer import build_optimizer
from drumline.training.precision import Arithmetic
from drumline.training.session import run_length
from drumline.training.source import Cursor, ShareOfStep, Source
from drumline.training.step import blocking_bytes
from drumline.training.task import Losses, Setup, Task

TRACED_SAMPLES = 32
"""Samples of the smaller trace, rounded up to whole groups; the other has twice as many."""

_IDLE = ("detach", "_local_scalar", "is_", "sym_", "size", "stride", "alias", "empty", "new_empty")
_LOOK_UPS = ("index", "gather", "embedding", "select", "slice", "scatter")


@dataclass
class Counts:
    """What a part of a step cost."""

    flop: float = 0.0
    traffic: float = 0.0
    kernels: int = 0


class TrafficCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up bytes read and written, and operators that do something."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.traffic = 0.0
        self.kernels = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        if _works(func):
            self.kernels += 1
            self.traffic += _traffic(func, (args, kwargs), result)
        return result


def trace(config: RunConfig) -> Workload:
    """Trace in this process."""
    try:
        return _trace(config, fake=True)
    except (DataDependentOutputException, DynamicOutputShapeException):
        return _trace(config, fake=False)


def _trace(config: RunConfig, *, fake: bool) -> Workload:
    task, model, source = _build(config)
    units = unit_bytes(model, task)
    groups = task.granularity
    least = -(-TRACED_SAMPLES // groups) * groups
    sizes = (least, 2 * least)
    batches = [_batch(source, size, groups) for size in sizes]
    mode = FakeTensorMode(allow_non_fake_inputs=True) if fake else None
    if mode is not None:
        model = _faked(model, mode)
    with mode or nullcontext():
        passes = []
        for size, batch in zip(sizes, batches, strict=True):
            data = batch if mode is None else tree_map_only(Tensor, mode.from_tensor, batch)
            losses, counts = _pass(config, task, model, data)
            passes.append((size, counts))
        update = _update(config, model)
    (few, low), (many, high) = passes
    traffic = (high.traffic - low.traffic) / (many - few)
    leaves = [leaf for leaf in tree_leaves(batches[-1]) if isinstance(leaf, Tensor)]
    parameters = [p for p in model.parameters() if p.requires_grad]
    return Workload(
        flop_per_sample=(high.flop - low.flop) / (many - few),
        traffic_per_sample=traffic,
        traffic_per_pass=max(0.0, high.traffic - traffic * many),
        traffic_per_step=update.traffic,
        kernels_per_pass=high.kernels,
        kernels_per_step=update.kernels,
        sample_bytes=sum(leaf.numel() * leaf.element_size() for leaf in leaves) / many,
        parameters=sum(p.numel() for p in parameters),
        steps=run_length(config, source),
        exchange=_exchange(config, parameters, losses, units),
        method="traced under fake tensors" if fake else "traced with real tensors, few samples",
    )


def _build(config: RunConfig) -> tuple[Task, nn.Module, Source]:
    assert config.task is not None
    device = torch.device("cpu")
    alone = ClusterEnvironment.detect({})
    world = World(0, 1, 0, device, "none", LocalControl(), config.distributed, alone)
    task: Task = import_object(config.task.implementation)()
    task.setup(Setup(config, world, EventLog(Path(os.devnull))))
    torch.manual_seed(config.seed)
    model = task.build_model().to(device, Arithmetic(config.precision, device).weights)
    return task, model, task.build_source()


def _batch(source: Source, size: int, granularity: int) -> Any:
    share = ShareOfStep(0, (size,), size, granularity)
    batch = next(source.open(share, Cursor()))
    if batch.count < size:
        raise BadInput(
            f"The data has {batch.count} samples, and a trace needs {size}.",
            remedy="Use more data, or --calibrate.",
        )
    return batch.data


def _faked(model: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """The model with fake parameters and buffers."""
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                fake = mode.from_tensor(parameter)
                module._parameters[name] = nn.Parameter(fake, parameter.requires_grad)
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = mode.from_tensor(buffer)
    return model


def _pass(config: RunConfig, task: Task, model: nn.Module, data: Any) -> tuple[Losses, Counts]:
    """One micro-batch forward and backward."""
    arithmetic = Arithmetic(config.precision, torch.device("cpu"))
    model.zero_grad(set_to_none=True)
    with FlopCounterMode(display=False) as flops, TrafficCounter() as traffic:
        with arithmetic.autocast():
            losses = task.loss(model, data)
        torch.autograd.backward(losses.loss_sum)
    return losses, Counts(flops.get_total_flops(), traffic.traffic, traffic.kernels)


def _update(config: RunConfig, model: nn.Module) -> Counts:
    """Norm and optimizer, in a step after the first."""
    optimizer = build_optimizer(config.optimizer, model)
    parameters = [p for p in model.parameters() if p.grad is not None]
    optimizer.step()
    with TrafficCounter() as traffic:
        nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        optimizer.step()
    return Counts(0.0, traffic.traffic, traffic.kernels)


def unit_bytes(model: nn.Module, task: Task) -> tuple[int, ...]:
    """Bytes of the trained weights of each unit that a sharded mode gathers; last all others."""
    units = find_units(model, task.shard_units(model))
    inside = [_trained(unit.parameters()) for unit in units]
    return (*inside, _trained(model.parameters()) - sum(inside))


def _trained(parameters: Iterable[nn.Parameter]) -> int:
    return sum(p.numel() * p.element_size() for p in parameters if p.requires_grad)


def _exchange(
    config: RunConfig, parameters: list[nn.Parameter], losses: Losses, units: tuple[int, ...]
) -> Exchange:
    """Gradients as they travel, in the order in which a backward usually finishes them: the last
    layer first.
    """
    return Exchange(
        tuple(map(_trained, parcels_of(parameters))),
        blocking_bytes(losses),
        int(config.distributed.bucket_cap_mb * 2**20),
        units,
    )


def _works(func: Any) -> bool:
    """Whether an operator touches memory, and does not only rename, reserve or ask."""
    space, _, name = str(func).partition(".")
    if getattr(func, "is_view", False) or space in ("prim", "profiler"):
        return False
    return not name.startswith(_IDLE)


def _traffic(func: Any, given: Any, result: Any) -> float:
    name = str(func).partition(".")[2]
    out = _bytes(result)
    if name.startswith(_LOOK_UPS):
        return 2 * out
    read = _bytes(given)
    returned = {id(leaf) for leaf in tree_leaves(result)}
    written_in_place = sum(
        _bytes(value)
        for argument, value in zip(func._schema.arguments, given[0], strict=False)
        if argument.name != "grads"  # named as written for the sake of loss scaling
        and argument.alias_info is not None
        and argument.alias_info.is_write
        and not any(id(leaf) in returned for leaf in tree_leaves(value))
    )
    return read + out + written_in_place


def _bytes(value: Any) -> float:
    leaves = [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
    return float(sum(leaf.numel() * leaf.element_size() for leaf in leaves))


def answer(config: dict[str, Any]) -> dict[str, Any]:
    """The trace of a config, or what kept it from being made, and the sources they come from."""
    try:
        found: dict[str, Any] = {"trace": trace(parse_config(config)).as_dict()}
    except Exception as error:  # whatever the task's own code raises
        found = {"error": format_exception_only(error)[-1].strip()}
    return {**found, "sources": loaded_sources()}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(answer(json.load(sys.stdin))) + "\n")
