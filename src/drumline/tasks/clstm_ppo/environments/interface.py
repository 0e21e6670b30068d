"""What the collector asks of environments: many of them at once, as tensors on one device.

Nothing here knows ranks. The collector gives each environment a seed that belongs to its number
among all environments of the run, so what an environment does depends on its seed and its actions
alone, never on how many environments stand beside it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from drumline.tasks.clstm_ppo.environments.spaces import ActionSpace, Box


class Transition(NamedTuple):
    """What one action in every environment led to. E environments, F features.

    An environment whose episode ended has begun the next one already: `observations` then holds
    the first of the new episode, and `final_observations` what the action led to.

    Attributes:
        observations: [E, F], what the policy acts on next.
        rewards: [E], in the observations' dtype.
        terminated: [E], bool: the episode ended of itself, and nothing would follow.
        truncated: [E], bool: the episode was cut off (a time limit), and more would have followed.
        final_observations: [E, F], the observations before any new episode; equal to
            `observations` where no episode ended.
    """

    observations: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    final_observations: Tensor


class Environments(ABC):
    """A number of environments of one kind.

    Attributes:
        count: Number of environments, E.
        observation_space: Its `size` is the number of features, F.
        action_space: Actions are int64 [E] for Discrete, int64 [E, choices] for MultiDiscrete, and
            floating point [E, size] for Box.
        episode_limit: Episodes are cut off after this many steps, and never before; None if that
            is not known.
        capturable: Whether a step on a GPU can be recorded as a CUDA graph: it never waits for the
            device, brings nothing to it, and all it changes is in `state_dict`.
    """

    capturable: bool = False
    count: int
    observation_space: Box
    action_space: ActionSpace
    episode_limit: int | None

    @abstractmethod
    def reset(self, seeds: Tensor) -> Tensor:
        """Begin the first episode of every environment.

        Args:
            seeds: int64 [E]. All randomness of an environment follows from its seed, that of its
                later episodes, too.

        Returns:
            The first observations, [E, F].
        """

    @abstractmethod
    def step(self, actions: Tensor) -> Transition:
        """Act once in every environment. Returned tensors are not changed by later steps."""

    def foresee(self, steps: int) -> None:
        """So many steps follow, and no more before this is called again: what can be made ready for
        all of them at once may be made here.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Tensor]:
        """All that is needed to go on, environments in dim 0 of every tensor.

        Between ranks these are cut and put together along dim 0; other dims that differ are
        filled up with zeros.
        """

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state_dict` gave, as if nothing had happened between."""

    def bind(self, state: Mapping[str, Tensor]) -> None:
        """Go on from tensors named as in `state_dict`, and hold them, not copies. Only asked for
        where `capturable`.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Let go of processes and the like."""
