"""Environments whose state is tensors: time limits, new episodes and randomness in one place.

A subclass brings three pure functions: the first state of an episode from uniform numbers, what an
action does to a state, and what is seen of it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from drumline.distributed.kind import is_gpu
from drumline.tasks.clstm_ppo.environments.interface import Environments, Transition
from drumline.training.noise import uniform

State = dict[str, Tensor]
"""Tensors by name, environments in dim 0."""
MOST_FORESEEN = 2**25
"""Numbers drawn ahead at most."""


class TensorEnvironments(Environments):
    """Many environments as one set of tensors; a step has no Python for each of them.

    The numbers an episode begins with are a function of (seed, episode), so environments end
    their episodes independently of each other.

    Args:
        count: How many.
        device: Where the tensors are.
        dtype: Of states, observations and rewards.
        episode_limit: Steps after which an episode is cut off; None: never.
    """

    draws: int
    """Uniform numbers that the first state of an episode is made from."""

    def __init__(
        self, count: int, device: torch.device, dtype: torch.dtype, episode_limit: int | None
    ) -> None:
        self.count, self.device, self.dtype = count, device, dtype
        self.episode_limit = episode_limit
        self.seeds = torch.zeros(count, dtype=torch.int64, device=device)
        self.episodes = torch.zeros_like(self.seeds)
        self.elapsed = torch.zeros_like(self.seeds)
        self.state: State = {}
        self.foresees = is_gpu(device)  # on a CPU a new episode is drawn only where one ended
        self._rows = torch.arange(count, device=device)
        self._foreseen: tuple[Tensor, Tensor] | None = None

    @abstractmethod
    def first(self, uniforms: Tensor) -> State:
        """The first state of an episode, from numbers in [0, 1), [E, draws]."""

    @abstractmethod
    def advance(self, state: State, actions: Tensor) -> tuple[State, Tensor, Tensor]:
        """The next state, rewards [E], and whether the episode is over [E], bool."""

    @abstractmethod
    def observe(self, state: State) -> Tensor:
        """What the policy sees, [E, F]."""

    def reset(self, seeds: Tensor) -> Tensor:
        """Begin the first episode of every environment."""
        self.seeds = seeds.to(self.device, copy=True)
        self.episodes = torch.zeros_like(self.seeds)
        self.elapsed = torch.zeros_like(self.seeds)
        self.state = self.first(self._uniforms())
        return self.observe(self.state)

    def step(self, actions: Tensor) -> Transition:
        """Act, and begin new episodes where one ended."""
        state, rewards, terminated = self.advance(self.state, actions)
        self.elapsed = self.elapsed + 1
        truncated = torch.zeros_like(terminated)
        if self.episode_limit is not None:
            truncated = self.elapsed >= self.episode_limit
        seen = final = self.observe(state)
        done = terminated | truncated
        # On the CPU looking is cheaper than working; on a GPU it would be a wait.
        if is_gpu(self.device) or bool(done.any()):
            state = self._begin_anew(state, done)
            seen = self.observe(state)
        self.state = state
        return Transition(seen, rewards, terminated, truncated, final)

    def foresee(self, steps: int) -> None:
        """Draw what all episodes begin with that can begin in so many steps, one each step."""
        if not self.foresees or steps * self.count * self.draws > MOST_FORESEEN:
            self._foreseen = None
            return
        episodes = self.episodes + torch.arange(1, steps + 1, device=self.device).unsqueeze(1)
        drawn = uniform(self.seeds, episodes, numbers=self.draws).to(self.dtype)
        if self._foreseen is None or self._foreseen[0].shape != drawn.shape:
            self._foreseen = drawn, self.episodes.clone()
        else:  # where a recorded step looks
            self._foreseen[0].copy_(drawn)
            self._foreseen[1].copy_(self.episodes)

    def _begin_anew(self, state: State, done: Tensor) -> State:
        self.episodes = self.episodes + done
        self.elapsed = torch.where(done, 0, self.elapsed)
        if self._foreseen is None:
            uniforms = self._uniforms()
        else:
            drawn, before = self._foreseen
            uniforms = drawn[(self.episodes - before - 1).clamp(min=0), self._rows]
        fresh = self.first(uniforms)
        return {name: where_rows(done, fresh[name], old) for name, old in state.items()}

    def _uniforms(self) -> Tensor:
        return uniform(self.seeds, self.episodes, numbers=self.draws).to(self.dtype)

    def state_dict(self) -> dict[str, Tensor]:
        """Seeds, episode numbers, steps within the episode, and the state."""
        own = {"seeds": self.seeds, "episodes": self.episodes, "elapsed": self.elapsed}
        return own | {f"state.{name}": tensor for name, tensor in self.state.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state_dict` gave."""
        self.bind({name: tensor.to(self.device, copy=True) for name, tensor in state.items()})

    def bind(self, state: Mapping[str, Tensor]) -> None:
        """Hold these tensors as the state."""
        there = dict(state)
        self.seeds, self.episodes = there.pop("seeds"), there.pop("episodes")
        self.elapsed = there.pop("elapsed")
        self.state = {name.removeprefix("state."): tensor for name, tensor in there.items()}


def where_rows(rows: Tensor, chosen: Tensor, other: Tensor) -> Tensor:
    """`chosen` in the rows (dim 0) where `rows` is true, `other` elsewhere; any further dims."""
    return torch.where(rows.view(-1, *[1] * (chosen.dim() - 1)), chosen, other)
