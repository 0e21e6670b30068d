"""Gymnasium's environments behind the batched interface, through its vector API.

Every episode is begun with a seed of its own, a function of (environment's seed, episode), so an
environment's past is a seed and the actions since: that is what a checkpoint holds, and going on
plays them again. That is exact for environments whose episodes follow from seed and actions, as
Gymnasium asks of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from torch import Tensor

from drumline.errors import BadInput
from drumline.tasks.clstm_ppo.environments.config import GymnasiumConfig
from drumline.tasks.clstm_ppo.environments.interface import Environments, Transition
from drumline.tasks.clstm_ppo.environments.spaces import ActionSpace, Box, Discrete, MultiDiscrete
from drumline.training.noise import mixed

_FIRST_LOG = 64
"""Actions that a log has room for at first; it is doubled when it is full."""


class GymnasiumEnvironments(Environments):
    """Many environments of one id; observations are flattened, and actions cut from flat ones.

    Raises:
        BadInput: If its spaces are none of those a policy here can act in.
    """

    def __init__(
        self, config: GymnasiumConfig, count: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.config, self.count, self.device, self.dtype = config, count, device, dtype
        self.vector: gymnasium.vector.VectorEnv[Any, Any, Any] = gymnasium.make_vec(
            config.id,
            num_envs=count,
            vectorization_mode=config.workers,
            vector_kwargs={"autoreset_mode": AutoresetMode.DISABLED},
            wrappers=[gymnasium.wrappers.FlattenObservation],
            **config.arguments,
        )
        self.observation_space = self._observed(self.vector.single_observation_space)
        self.action_space, self._first_option = _action_space(self.vector.single_action_space)
        self.episode_limit = (
            None if self.vector.spec is None else self.vector.spec.max_episode_steps
        )
        self.seeds = torch.zeros(count, dtype=torch.int64)
        self.episodes = torch.zeros_like(self.seeds)
        self.elapsed = torch.zeros_like(self.seeds)
        self._log = self._empty_log(_FIRST_LOG)

    def reset(self, seeds: Tensor) -> Tensor:
        """Begin the first episode of every environment."""
        self.seeds = seeds.to("cpu", copy=True)
        self.episodes = torch.zeros_like(self.seeds)
        self.elapsed = torch.zeros_like(self.seeds)
        self._log = self._empty_log(_FIRST_LOG)
        return self._tensor(self._begin(np.ones(self.count, dtype=np.bool_)))

    def step(self, actions: Tensor) -> Transition:
        """Act, and begin new episodes where one ended."""
        flat = actions.detach().cpu()
        self._note(flat)
        seen, rewards, terminated, truncated, _ = self.vector.step(self._acted(flat))
        final = observations = self._tensor(seen)
        done = np.logical_or(terminated, truncated)
        if done.any():
            ended = torch.from_numpy(done)
            self.episodes += ended
            self.elapsed.masked_fill_(ended, 0)
            observations = self._tensor(self._begin(done))
        return Transition(
            observations,
            torch.from_numpy(rewards).to(self.device, self.dtype),
            torch.from_numpy(terminated).to(self.device),
            torch.from_numpy(truncated).to(self.device),
            final,
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Seeds, episode numbers, and the actions since each episode began."""
        longest = int(self.elapsed.max())
        return {
            "seeds": self.seeds,
            "episodes": self.episodes,
            "elapsed": self.elapsed,
            "actions": self._log[:, :longest].clone(),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Begin the present episodes again and play their actions, all ending at the same step."""
        self.seeds, self.episodes, self.elapsed, self._log = (
            state[name].to("cpu", copy=True) for name in ("seeds", "episodes", "elapsed", "actions")
        )
        self._log = self._log.to(self._empty_log(0).dtype)
        longest = int(self.elapsed.max())
        begins = (longest - self.elapsed).numpy()
        over = np.ones(self.count, dtype=np.bool_)
        for step in range(longest + 1):
            due = (begins == step) | over
            if due.any():
                self._begin(due)
            if step < longest:
                place = torch.from_numpy(np.maximum(step - begins, 0))
                flat = self._log[torch.arange(self.count), place]
                _, _, terminated, truncated, _ = self.vector.step(self._acted(flat))
                over = np.logical_or(terminated, truncated) & (begins > step + 1)

    def close(self) -> None:
        """End the worker processes, where there are any."""
        self.vector.close()

    def _begin(self, which: NDArray[np.bool_]) -> Any:
        """Begin the present episode of some environments; the observations of all."""
        seeds = (mixed(self.seeds, self.episodes) & 0x7FFFFFFF).tolist()
        options = {"reset_mask": which.copy()}
        observations, _ = self.vector.reset(seed=seeds, options=options)  # type: ignore[arg-type]
        return observations

    def _note(self, flat: Tensor) -> None:
        if int(self.elapsed.max()) >= self._log.size(1):
            more = self._empty_log(max(_FIRST_LOG, self._log.size(1)))
            self._log = torch.cat([self._log, more], dim=1)
        self._log[torch.arange(self.count), self.elapsed] = flat.to(self._log.dtype)
        self.elapsed += 1

    def _empty_log(self, length: int) -> Tensor:
        space = self.action_space
        shape: tuple[int, ...] = (self.count, length)
        if isinstance(space, Box):
            return torch.zeros((*shape, space.size), dtype=self.dtype)
        if isinstance(space, MultiDiscrete):
            shape = (*shape, len(space.options))
        return torch.zeros(shape, dtype=torch.int64)

    def _acted(self, flat: Tensor) -> NDArray[Any]:
        """Flat actions as the environments take them."""
        space = self.vector.single_action_space
        array = flat.numpy()
        if isinstance(self.action_space, Box):
            array = np.clip(array, self.action_space.low, self.action_space.high)
        shaped: NDArray[Any] = array.reshape(self.count, *(space.shape or ()))
        return (shaped + self._first_option).astype(space.dtype)

    def _tensor(self, observations: NDArray[Any]) -> Tensor:
        seen = torch.tensor(observations).to(self.device, self.dtype)
        return seen if self.config.observed is None else seen[:, self.config.observed]

    def _observed(self, space: gymnasium.Space[Any]) -> Box:
        if not isinstance(space, gymnasium.spaces.Box):
            raise BadInput(
                f"The observations of {self.config.id} ({space}) cannot be made flat numbers.",
                remedy="Use an environment whose observations have a fixed size.",
            )
        low, high = space.low.astype(float).tolist(), space.high.astype(float).tolist()
        numbers = self.config.observed
        if numbers is None:
            return Box(tuple(low), tuple(high))
        if not numbers or max(numbers) >= len(low):
            raise BadInput(
                f"task.environment.observed {numbers} does not fit the {len(low)} numbers that "
                f"{self.config.id} shows.",
                remedy=f"Give numbers from 0 to {len(low) - 1}.",
            )
        return Box(tuple(low[n] for n in numbers), tuple(high[n] for n in numbers))


def _action_space(space: gymnasium.Space[Any]) -> tuple[ActionSpace, NDArray[Any] | int]:
    """The flat space, and the number of the first option of each choice."""
    spaces = gymnasium.spaces
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n)), int(space.start)
    if isinstance(space, spaces.MultiDiscrete):
        return MultiDiscrete(tuple(space.nvec.reshape(-1).tolist())), space.start
    if isinstance(space, spaces.MultiBinary):
        return MultiDiscrete((2,) * int(np.prod(space.shape))), 0
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        low, high = (side.reshape(-1).astype(float).tolist() for side in (space.low, space.high))
        return Box(tuple(low), tuple(high)), 0
    raise BadInput(
        f"A policy here cannot act in {space}.",
        remedy="Use an environment with Discrete, MultiDiscrete, MultiBinary or real Box actions.",
    )
