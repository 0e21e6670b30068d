"""Everything that must outlive a process, registered once, saved and loaded together."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from drumline.distributed import Strategy
from drumline.training.source import Cursor


class Stateful(Protocol):
    """Torch's convention for objects with a state."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values."""

    def load_state_dict(self, state: dict[str, Any], /) -> Any:
        """Take back what `state_dict` gave."""


class StateRegistry:
    """Named parts of a run's state. A name is registered once."""

    def __init__(self) -> None:
        self._parts: dict[str, Stateful] = {}

    def register(self, name: str, part: Stateful) -> None:
        """Add a part; what it gives must be tensors and plain values.

        Raises:
            ValueError: If the name is taken.
        """
        if name in self._parts:
            raise ValueError(f"the state {name!r} is registered already")
        self._parts[name] = part

    def state_dict(self) -> dict[str, Any]:
        """The states of all parts by name."""
        return {name: part.state_dict() for name, part in self._parts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Give every part its state; a part that the state does not know keeps its own."""
        for name, part in self._parts.items():
            if name in state:
                part.load_state_dict(state[name])


@dataclass
class Progress:
    """How far a run is. `step` counts batches taken from the source, skipped steps included."""

    step: int = 0
    samples: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0
    cursor: Cursor = field(default_factory=Cursor)

    def state_dict(self) -> dict[str, Any]:
        """All counters as plain values."""
        return {
            "step": self.step,
            "samples": self.samples,
            "skipped": self.skipped,
            "skipped_in_a_row": self.skipped_in_a_row,
            "epoch": self.cursor.epoch,
            "offset": self.cursor.offset,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.step, self.samples = state["step"], state["samples"]
        self.skipped, self.skipped_in_a_row = state["skipped"], state["skipped_in_a_row"]
        self.cursor = Cursor(state["epoch"], state["offset"])


class OptimizerState:
    """An optimizer's moments. Its options (betas, weight decay, ...) are the config's, not those
    of the run that was interrupted.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, strategy: Strategy) -> None:
        self._optimizer, self._strategy = optimizer, strategy

    def state_dict(self) -> dict[str, Any]:
        """By parameter name, whole on rank 0. All ranks must call this together."""
        return self._strategy.optimizer_state(self._optimizer)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the moments back and keep the present options."""
        options = [
            {key: value for key, value in group.items() if key != "params"}
            for group in self._optimizer.param_groups
        ]
        self._strategy.load_optimizer_state(self._optimizer, state)
        for group, mine in zip(self._optimizer.param_groups, options, strict=True):
            group.update(mine)


class RandomStates:
    """The random states of this process: torch's CPU and current CUDA device, numpy's, Python's.

    `gather` gives the states of all ranks in rank order. A rank that has no saved state, because
    there are more ranks now, keeps its own; steps seed their device randomness anyway.
    """

    def __init__(self, rank: int, gather: Callable[[Any], list[Any]]) -> None:
        self._rank, self._gather = rank, gather

    def state_dict(self) -> dict[str, Any]:
        """The states of every rank. All ranks must call this together."""
        return {"ranks": self._gather(random_state())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set this rank's state."""
        ranks = state["ranks"]
        if self._rank < len(ranks):
            set_random_state(ranks[self._rank])


def random_state() -> dict[str, Any]:
    """The random states of this process; see `RandomStates`."""
    numpy_state: Any = np.random.get_state()
    numpy_kind, numpy_keys, numpy_position, has_gauss, gauss = numpy_state
    state = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": (numpy_kind, numpy_keys.tolist(), numpy_position, has_gauss, gauss),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Take back what `random_state` gave."""
    torch.set_rng_state(state["torch"])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
