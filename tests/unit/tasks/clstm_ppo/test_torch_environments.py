"""CartPole and Pendulum as tensors, against Gymnasium's own, and what all such environments do."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from drumline.tasks.clstm_ppo.environments.build import build_environments
from drumline.tasks.clstm_ppo.environments.config import (
    CartPoleMemoryConfig,
    EnvironmentConfig,
    PendulumMemoryConfig,
)
from drumline.tasks.clstm_ppo.environments.tensor_environments import TensorEnvironments

CPU, FP64 = torch.device("cpu"), torch.float64
BOTH = [CartPoleMemoryConfig(), PendulumMemoryConfig()]


def built(config: EnvironmentConfig, count: int, dtype: torch.dtype = FP64) -> TensorEnvironments:
    found = build_environments(config, count, CPU, dtype)
    assert isinstance(found, TensorEnvironments)
    return found


def actions_for(config: EnvironmentConfig, count: int, step: int) -> torch.Tensor:
    """Some actions; the same for an environment whatever stands beside it."""
    random = np.random.default_rng(step)
    if isinstance(config, CartPoleMemoryConfig):
        return torch.from_numpy(random.integers(0, 2, count))
    return torch.from_numpy(random.uniform(-2.5, 2.5, (count, 1)))


def peer_of(config: EnvironmentConfig, state: torch.Tensor) -> Any:
    """Gymnasium's environment, set to a state."""
    name = "CartPole-v1" if isinstance(config, CartPoleMemoryConfig) else "Pendulum-v1"
    peer = gymnasium.make(name)
    peer.reset(seed=0)
    peer.unwrapped.state = state.numpy().astype(np.float64)
    return peer


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("config", BOTH, ids=lambda c: c.name)
def test_every_step_is_gymnasiums(config: EnvironmentConfig, dtype: torch.dtype) -> None:
    """Through several episodes with their time limits; the peer is set anew where one begins, and
    in float32 at every step.
    """
    shown = config.model_copy(update={"velocities": True})
    ours = built(shown, 1, dtype)
    ours.reset(torch.tensor([5]))
    peer = peer_of(config, ours.state["physics"][0])
    ended = 0
    for step in range(600):
        if dtype is torch.float32:
            peer.unwrapped.state = ours.state["physics"][0].numpy().astype(np.float64)
        action = actions_for(config, 1, step)
        transition = ours.step(action)
        given = int(action) if action.dim() == 1 else action[0].numpy()
        seen, reward, terminated, truncated, _ = peer.step(given)
        assert transition.final_observations[0].numpy() == pytest.approx(seen, abs=1e-6)
        assert float(transition.rewards) == pytest.approx(
            reward, abs=1e-5 if dtype != FP64 else 1e-12
        )
        assert (bool(transition.terminated), bool(transition.truncated)) == (terminated, truncated)
        if terminated or truncated:
            ended += 1
            peer = peer_of(config, ours.state["physics"][0])
    assert ended >= 3


@pytest.mark.parametrize("config", BOTH, ids=lambda c: c.name)
def test_velocities_are_hidden(config: EnvironmentConfig) -> None:
    hidden, shown = built(config, 4), built(config.model_copy(update={"velocities": True}), 4)
    seeds = torch.arange(4)
    less, more = hidden.reset(seeds), shown.reset(seeds)
    kept = [0, 2] if isinstance(config, CartPoleMemoryConfig) else [0, 1]
    assert torch.equal(less, more[:, kept])
    assert hidden.observation_space.size == 2


def test_a_new_episode_begins_in_the_step_that_ends_one() -> None:
    ours = built(CartPoleMemoryConfig(episode_limit=7), 3)
    ours.reset(torch.tensor([1, 2, 3]))
    for _ in range(6):
        transition = ours.step(torch.tensor([0, 1, 0]))
        assert torch.equal(transition.observations, transition.final_observations)
    transition = ours.step(torch.tensor([0, 1, 0]))
    assert transition.truncated.all() and not transition.terminated.any()
    assert (transition.final_observations[:, 0].abs() > 0.05).all()  # pushed away for 7 steps
    assert (transition.observations.abs() <= 0.05).all()  # the first of a new one
    assert torch.equal(ours.elapsed, torch.zeros(3, dtype=torch.int64))


def test_truncation_and_termination_may_come_together() -> None:
    ours = built(CartPoleMemoryConfig(), 1)
    ours.reset(torch.tensor([1]))
    steps = 0
    while True:
        steps += 1
        if bool(ours.step(torch.tensor([1])).terminated):
            break
    again = built(CartPoleMemoryConfig(episode_limit=steps), 1)
    again.reset(torch.tensor([1]))
    for _ in range(steps):
        transition = again.step(torch.tensor([1]))
    assert bool(transition.terminated) and bool(transition.truncated)


@pytest.mark.parametrize("config", BOTH, ids=lambda c: c.name)
def test_an_environment_does_not_depend_on_its_neighbours(config: EnvironmentConfig) -> None:
    short = config.model_copy(update={"episode_limit": 9})
    many, one = built(short, 5), built(short, 1)
    seeds = torch.tensor([11, 12, 13, 14, 15])
    assert torch.equal(many.reset(seeds)[3:4], one.reset(seeds[3:4]))
    for step in range(40):
        actions = actions_for(config, 5, step)
        for theirs, ours in zip(many.step(actions), one.step(actions[3:4]), strict=True):
            assert torch.equal(theirs[3:4], ours)


@pytest.mark.parametrize("config", BOTH, ids=lambda c: c.name)
def test_going_on_from_a_state_is_exact(config: EnvironmentConfig) -> None:
    short = config.model_copy(update={"episode_limit": 13})
    first, second = built(short, 4), built(short, 4)
    first.reset(torch.arange(4))
    for step in range(20):
        first.step(actions_for(config, 4, step))
    second.load_state_dict({name: value.clone() for name, value in first.state_dict().items()})
    for step in range(20, 60):
        actions = actions_for(config, 4, step)
        pairs = zip(first.step(actions), second.step(actions), strict=True)
        assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


def test_episodes_begin_differently_and_evenly_spread() -> None:
    ours = built(CartPoleMemoryConfig(velocities=True), 2000)
    seen = ours.reset(torch.arange(2000))
    # 8000 numbers evenly within 0.05: the mean's standard error is 0.05 / sqrt(3 * 8000).
    assert float(seen.abs().max()) <= 0.05
    assert abs(float(seen.mean())) < 4 * 0.05 / (3 * 8000) ** 0.5
    assert float(seen.std()) == pytest.approx(0.05 / 3**0.5, rel=0.03)
