"""Which mode spreads a model: the one that was asked for, or the next that can be set up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from drumline.config import DistributedConfig, Mode
from drumline.distributed.failures import is_communication_failure
from drumline.distributed.strategies.base import Split, Strategy
from drumline.distributed.strategies.data_parallel import ThreadedReplicas
from drumline.distributed.strategies.replicated import DataParallelReplicas
from drumline.distributed.strategies.sharded import Hybrid, Sharded
from drumline.distributed.strategies.single import OneOfMany, SingleDevice
from drumline.errors import BadInput, RankFailure

if TYPE_CHECKING:
    from drumline.distributed.world import World

Prepare = Callable[[Strategy], nn.Module]
Report = Callable[[Strategy, str, Strategy], None]


@dataclass(frozen=True)
class Spread:
    """A model that is spread. `wrapped` is what a step calls."""

    strategy: Strategy
    model: nn.Module
    wrapped: nn.Module


def candidates(
    config: DistributedConfig,
    world: World,
    planned: Mode | None = None,
    low_precision: torch.dtype | None = None,
) -> list[Strategy]:
    """Strategies to try in turn: one if the config names a mode, else what `auto` may come to.

    Args:
        config: How the run is spread.
        world: The world of this rank.
        planned: What the plan chose for `auto`, if there was one.
        low_precision: See `Sharded`.
    """
    build: dict[Mode, Callable[[], Strategy]] = {
        Mode.NONE: lambda: SingleDevice(world),
        Mode.DATAPARALLEL: lambda: ThreadedReplicas(world),
        Mode.DISTRIBUTED: lambda: DataParallelReplicas(config, world),
        Mode.SHARDED: lambda: Sharded(config, world, low_precision),
        Mode.HYBRID: lambda: _hybrid(config, world, low_precision),
    }
    if config.mode is not Mode.AUTO:
        return [build[config.mode]()]
    if world.size == 1:
        return [build[Mode.NONE]()]
    first = planned if planned is not None and planned.needs_group else Mode.DISTRIBUTED
    others = [mode for mode in (Mode.DISTRIBUTED, Mode.SHARDED) if mode is not first]
    found = [build[mode]() for mode in (first, *others)]
    return [*found, OneOfMany(world)] if config.allow_single_device else found


def _hybrid(config: DistributedConfig, world: World, low_precision: torch.dtype | None) -> Strategy:
    if config.pipeline_size == 1:
        return Hybrid(config, world, low_precision)
    # Imported only here: torch's pipelining takes a while to load.
    from drumline.distributed.strategies.pipeline.strategy import Pipelined

    return Pipelined(config, world)


def build_strategy(config: DistributedConfig, world: World) -> Strategy:
    """The strategy that is tried first."""
    return candidates(config, world)[0]


def spread_model(
    world: World,
    strategies: list[Strategy],
    prepare: Prepare,
    split: Callable[[Strategy, nn.Module], Split],
    report: Report,
) -> Spread:
    """Spread a model by the first strategy that can be set up on all ranks.

    Args:
        world: The world of this rank.
        strategies: Candidates, the same on all ranks.
        prepare: Builds the model anew and fills it; called for each candidate, its errors are
            nobody's fault here.
        split: How that model may be cut; raises BadInput if not in that mode.
        report: Told on rank 0 of a candidate that failed, why, and what is tried next.

    Raises:
        Exception: What the last candidate raised.
        RankFailure: On the ranks where it did not fail, naming those where it did.
    """
    for place, strategy in enumerate(strategies):
        model = prepare(strategy)
        if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
            raise _cannot_begin_again(strategies[place - 1])
        made, error = _attempt(strategy, model, split, world)
        answers = world.control.gather(None if error is None else str(error))
        reasons = {rank: why for rank, why in enumerate(answers) if why is not None}
        if made is not None and not reasons:
            return Spread(strategy, model, made)
        strategy.teardown()
        if place == len(strategies) - 1:
            raise error or _elsewhere(strategy, reasons)
        if world.is_main:
            report(strategy, _told(reasons), strategies[place + 1])
    raise AssertionError("there is always a candidate")


def _attempt(
    strategy: Strategy,
    model: nn.Module,
    split: Callable[[Strategy, nn.Module], Split],
    world: World,
) -> tuple[nn.Module | None, Exception | None]:
    """Check on all ranks, and only then wrap, which is collective."""
    error: Exception | None = None
    cut = Split()
    try:
        cut = split(strategy, model)
        strategy.check(model, cut)
    except Exception as caught:
        error = caught
    if world.control.any(error is not None):
        return None, error
    try:
        return strategy.wrap(model, cut), None
    except Exception as caught:
        if is_communication_failure(caught):
            raise
        return None, caught


def _cannot_begin_again(failed: Strategy) -> BadInput:
    return BadInput(
        f"Mode {failed.mode.value} could not be set up, and the model is cut already.",
        remedy="Give a function that builds the model, or use another distributed.mode.",
    )


def _told(reasons: dict[int, str]) -> str:
    return "; ".join(f"rank {rank}: {' '.join(why.split())}" for rank, why in reasons.items())


def _elsewhere(strategy: Strategy, reasons: dict[int, str]) -> RankFailure:
    return RankFailure(
        f"Mode {strategy.mode.value} could not be set up ({_told(reasons)}).",
        remedy="Use another distributed.mode.",
    )
