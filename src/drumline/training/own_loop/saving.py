"""One checkpoint for all ranks of a loop, in the format of the Trainer's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from drumline.distributed import World
from drumline.errors import CheckpointError
from drumline.training.checkpoint import Checkpoint, open_checkpoint, write_checkpoint
from drumline.training.own_loop.loader import PreparedLoader
from drumline.training.state import RandomStates


@dataclass
class LoopState:
    """What a loop's checkpoint holds besides the user's own parts. `steps` counts steps taken."""

    models: list[nn.Module]
    optimizers: list[torch.optim.Optimizer]
    loaders: list[PreparedLoader]
    steps: int

    @property
    def model(self) -> nn.Module:
        """The one model, or all of them as a list of modules."""
        return self.models[0] if len(self.models) == 1 else nn.ModuleList(self.models)


def save_loop(path: Path, world: World, loop: LoopState, parts: dict[str, Any]) -> None:
    """Write it on rank 0; all ranks learn whether that went well.

    Raises:
        CheckpointError: On all ranks.
    """
    state = {
        "steps": loop.steps,
        "optimizers": [optimizer.state_dict() for optimizer in loop.optimizers],
        "loaders": [loader.state_dict() for loader in loop.loaders],
        "random": RandomStates(world.rank, world.control.gather).state_dict(),
        "parts": {
            name: part.state_dict() if hasattr(part, "state_dict") else part
            for name, part in parts.items()
        },
    }
    problem = None
    if world.is_main:
        problem = _problem_of(lambda: write_checkpoint(path, loop.steps, loop.model, state, {}))
    _raise_on_all(world, problem)


def load_loop(path: Path, world: World, loop: LoopState, parts: dict[str, Any]) -> dict[str, Any]:
    """Load it on every rank; returns the plain values among the user's parts.

    Raises:
        CheckpointError: On all ranks.
    """
    values: dict[str, Any] = {}

    def take() -> None:
        checkpoint = Checkpoint(path, 0, {})
        checkpoint.load_weights(loop.model)
        state = checkpoint.load_state()
        _check(path, state, loop, parts)
        loop.steps = state["steps"]
        for optimizer, saved in zip(loop.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        for loader, saved in zip(loop.loaders, state["loaders"], strict=True):
            loader.load_state_dict(saved)
        for name, saved in state["parts"].items():
            if name in parts:
                parts[name].load_state_dict(saved)
            else:
                values[name] = saved
        RandomStates(world.rank, world.control.gather).load_state_dict(state["random"])

    _raise_on_all(world, _problem_of(lambda: open_checkpoint(path)) if world.is_main else None)
    _raise_on_all(world, _problem_of(take))
    return values


def _check(path: Path, state: dict[str, Any], loop: LoopState, parts: dict[str, Any]) -> None:
    counts = {"optimizers": len(loop.optimizers), "loaders": len(loop.loaders)}
    for kind, count in counts.items():
        if len(state[kind]) != count:
            raise CheckpointError(
                f"{path} holds {len(state[kind])} {kind}, and {count} were prepared.",
                remedy="Prepare the same models, optimizers and loaders, in the same order.",
            )
    absent = sorted(set(parts) - set(state["parts"]))
    if absent:
        raise CheckpointError(
            f"{path} has no part named {', '.join(absent)}.",
            remedy=f"It has: {', '.join(sorted(state['parts'])) or 'none'}.",
        )


def _problem_of(action: Callable[[], object]) -> tuple[str, str] | None:
    """What went wrong, as message and remedy."""
    try:
        action()
    except CheckpointError as error:
        return error.message, error.remedy
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        return f"A checkpoint does not fit: {' '.join(str(error).split())}", ""
    return None


def _raise_on_all(world: World, problem: tuple[str, str] | None) -> None:
    found = next((p for p in world.control.gather(problem) if p is not None), None)
    if found is not None:
        raise CheckpointError(found[0], remedy=found[1])
