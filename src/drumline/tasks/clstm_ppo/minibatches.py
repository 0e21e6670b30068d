"""Whole sequences as the samples of a step, and the order in which minibatches take them.

The order is a function of (seed, rollout, pass), and every minibatch takes one sequence from each
block of neighbours. So it is the same on any number of ranks, and ranks with equally many
environments have equally much of every minibatch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from drumline.tasks.clstm_ppo.rollout import Rollout
from drumline.training.batches import Samples
from drumline.training.noise import mixed


@dataclass(frozen=True)
class Sequences(Samples):
    """Sequences of L steps. One transition counts as one sample, and only whole sequences are cut.

    Attributes:
        steps: Tensors [L, n, ...] by name: observations, starts, actions, log_probs, values,
            advantages, returns.
        states: The policy's state before each sequence, [n, ...] by name.
    """

    steps: Mapping[str, Tensor]
    states: Mapping[str, Tensor]

    def __getitem__(self, name: str) -> Tensor:
        return self.steps[name]

    @property
    def length(self) -> int:
        """Steps of a sequence, L."""
        return len(self.steps["starts"])

    @property
    def count(self) -> int:
        """Number of sequences, n."""
        return self.steps["starts"].size(1)

    def pick(self, numbers: Tensor) -> Sequences:
        """Copies of some sequences."""
        return self._each(
            lambda t: t.index_select(1, numbers), lambda t: t.index_select(0, numbers)
        )

    def narrow(self, start: int, length: int) -> Sequences:
        """The sequences that hold the transitions start..start+length-1, as views."""
        first, count = start // self.length, length // self.length
        return self._each(lambda t: t.narrow(1, first, count), lambda t: t.narrow(0, first, count))

    def to(self, device: torch.device) -> Sequences:
        """The sequences on a device."""
        return self._each(lambda t: t.to(device), lambda t: t.to(device))

    def clone(self) -> Sequences:
        """Copies of all tensors."""
        return self._each(Tensor.clone, Tensor.clone)

    def _each(self, of_steps: Any, of_states: Any) -> Sequences:
        return Sequences(
            {name: of_steps(tensor) for name, tensor in self.steps.items()},
            {name: of_states(tensor) for name, tensor in self.states.items()},
        )


def sequences_of(rollout: Rollout, length: int, advantages: Tensor, returns: Tensor) -> Sequences:
    """A rollout as sequences, in the order of environments and within one in the order of time.

    Args:
        rollout: T steps in E environments.
        length: Steps of a sequence; divides T.
        advantages: [T, E], as the loss takes them.
        returns: [T, E], what the values should have been.
    """
    by_step = {
        "observations": rollout.observations,
        "starts": rollout.starts,
        "actions": rollout.actions,
        "log_probs": rollout.log_probs,
        "values": rollout.values,
        "advantages": advantages,
        "returns": returns,
    }
    return Sequences(
        {name: _cut(tensor, length) for name, tensor in by_step.items()},
        {name: state.transpose(0, 1).flatten(0, 1) for name, state in rollout.states.items()},
    )


def _cut(steps: Tensor, length: int) -> Tensor:
    """[T, E, ...] to [length, E * T / length, ...]."""
    parts = steps.view(-1, length, *steps.shape[1:])
    return torch.movedim(parts, 0, 2).flatten(1, 2)


def minibatch_order(seed: int, rollout: int, epoch: int, sequences: int, size: int) -> Tensor:
    """Which sequences, counted over all ranks, each minibatch of a pass takes.

    Args:
        seed: The run's seed.
        rollout: Number of the rollout.
        epoch: Number of the pass over it.
        sequences: Sequences in a rollout.
        size: Sequences in a minibatch; divides them.

    Returns:
        int64 [minibatches, size], ascending in each row.
    """
    minibatches = sequences // size
    keys = mixed(seed, rollout, epoch, torch.arange(sequences)).view(size, minibatches)
    within = keys.argsort(dim=1)
    return (within + torch.arange(size).unsqueeze(1) * minibatches).t()
