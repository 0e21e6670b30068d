"""Gymnasium's environments behind the batched interface."""

from collections.abc import Iterator
from contextlib import contextmanager

import gymnasium
import numpy as np
import pytest
import torch

from drumline.errors import BadInput
from drumline.tasks.clstm_ppo.environments.build import build_environments
from drumline.tasks.clstm_ppo.environments.config import GymnasiumConfig
from drumline.tasks.clstm_ppo.environments.interface import Environments, Transition
from drumline.tasks.clstm_ppo.environments.spaces import Box, Discrete, MultiDiscrete


@contextmanager
def built(count: int, **keys: object) -> Iterator[Environments]:
    config = GymnasiumConfig.model_validate({"name": "gymnasium", **keys})
    found = build_environments(config, count, torch.device("cpu"), torch.float64)
    try:
        yield found
    finally:
        found.close()


def pushes(count: int, step: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(step).integers(0, 2, count))


def run(environments: Environments, steps: range) -> list[Transition]:
    return [environments.step(pushes(environments.count, step)) for step in steps]


def same(ours: list[Transition], theirs: list[Transition]) -> bool:
    pairs = [pair for a, b in zip(ours, theirs, strict=True) for pair in zip(a, b, strict=True)]
    return all(torch.equal(a, b) for a, b in pairs)


def test_steps_and_resets_are_those_of_single_environments() -> None:
    with built(2, id="CartPole-v1") as ours:
        first = ours.reset(torch.tensor([4, 9]))
        peer = gymnasium.make("CartPole-v1")
        peer.reset(seed=0)
        peer.unwrapped.state = first[0].numpy().copy()  # float32 of the true state: nearly the same
        ends = 0
        for step in range(300):
            actions = pushes(2, step)
            transition = ours.step(actions)
            seen, reward, terminated, truncated, _ = peer.step(int(actions[0]))
            assert transition.final_observations[0].numpy() == pytest.approx(seen, abs=1e-4)
            assert float(transition.rewards[0]) == reward
            assert bool(transition.terminated[0]) == terminated
            assert bool(transition.truncated[0]) == truncated
            if terminated:
                ends += 1
                assert not torch.equal(transition.observations[0], transition.final_observations[0])
                peer.reset()
                peer.unwrapped.state = transition.observations[0].numpy().copy()
        assert ends >= 5


def test_worker_processes_change_nothing_and_a_state_goes_on_exactly() -> None:
    """The state is a seed and the actions since: one saved here goes on in worker processes."""
    keys = {"id": "CartPole-v1", "observed": [0, 2]}
    with built(3, **keys) as ours, built(3, workers="async", **keys) as theirs:
        assert torch.equal(ours.reset(torch.arange(3)), theirs.reset(torch.arange(3)))
        assert same(run(ours, range(50)), run(theirs, range(50)))
        theirs.step(pushes(3, 1))  # astray
        theirs.load_state_dict({name: value.clone() for name, value in ours.state_dict().items()})
        assert same(run(ours, range(50, 150)), run(theirs, range(50, 150)))


def test_an_episode_longer_than_the_first_log_goes_on_exactly() -> None:
    def swing(environments: Environments, steps: range) -> list[Transition]:
        torques = [np.random.default_rng(step).uniform(-2, 2, (2, 1)) for step in steps]
        return [environments.step(torch.from_numpy(torque)) for torque in torques]

    with built(2, id="Pendulum-v1") as ours, built(2, id="Pendulum-v1") as theirs:
        ours.reset(torch.tensor([1, 2]))
        swing(ours, range(170))
        theirs.load_state_dict(ours.state_dict())
        assert same(swing(ours, range(170, 260)), swing(theirs, range(170, 260)))


def test_an_environment_does_not_depend_on_its_neighbours() -> None:
    with built(3, id="CartPole-v1") as many, built(1, id="CartPole-v1") as one:
        many.reset(torch.tensor([4, 5, 6]))
        one.reset(torch.tensor([6]))
        for step in range(80):
            actions = pushes(3, step)
            pairs = zip(many.step(actions), one.step(actions[2:]), strict=True)
            assert all(torch.equal(ours[2:], theirs) for ours, theirs in pairs)


def test_spaces_become_plain_ones() -> None:
    with built(1, id="CartPole-v1") as cartpole, built(1, id="Pendulum-v1") as pendulum:
        assert cartpole.action_space == Discrete(2)
        assert cartpole.observation_space.size == 4
        assert cartpole.episode_limit == 500
        assert pendulum.action_space == Box((-2.0,), (2.0,))
    with built(2, id=f"{__name__}:Odd-v0") as odd:
        assert odd.action_space == MultiDiscrete((2, 3))
        assert odd.observation_space.size == 5  # one of 5, one-hot
        odd.reset(torch.tensor([0, 0]))
        transition = odd.step(torch.tensor([[1, 2], [0, 0]]))
        assert transition.rewards.tolist() == [12.0, 0.0]
        assert odd.episode_limit is None


def test_what_does_not_fit_is_refused() -> None:
    with (
        pytest.raises(BadInput, match="numbers that CartPole-v1 shows"),
        built(1, id="CartPole-v1", observed=[0, 7]),
    ):
        pass
    with pytest.raises(BadInput, match="is no environment here"):
        GymnasiumConfig(id="CartPole-v77").check()
    GymnasiumConfig(id="CartPole-v1").check()


class Odd(gymnasium.Env[int, np.ndarray]):
    """Observes one of five, takes two choices at once, and pays 10 times the first + the second."""

    observation_space = gymnasium.spaces.Discrete(5)
    action_space = gymnasium.spaces.MultiDiscrete([2, 3])

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple[int, dict]:
        super().reset(seed=seed)
        return int(self.np_random.integers(5)), {}

    def step(self, action: np.ndarray) -> tuple[int, float, bool, bool, dict]:
        return 0, float(10 * action[0] + action[1]), False, False, {}


gymnasium.register("Odd-v0", entry_point=Odd)
