"""Acting: a rollout against the same steps taken one by one by hand."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from collectors import collector_of, config_of

from drumline.tasks.clstm_ppo.environments.build import build_environments
from drumline.tasks.clstm_ppo.environments.tensor_environments import TensorEnvironments
from drumline.tasks.clstm_ppo.graphs import Recorder, gpu_recorder, recorded
from drumline.tasks.clstm_ppo.rollout import Actor, Rollout
from drumline.training.noise import uniform

CPU = torch.device("cpu")
SEEDS, NOISE = torch.arange(4), torch.arange(10, 14)
POLICIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 3, "features": 4},
    "shared": {"shared": True},
}


def actor_of(
    steps: int,
    every: int,
    record: Recorder | None = None,
    device: torch.device = CPU,
    **keys: Any,
) -> Actor:
    config = config_of(**keys)
    _, policy = collector_of(config)
    policy.to(device)
    environments = build_environments(config.environment, 4, device, torch.float64)
    noise, seeds = NOISE.to(device), SEEDS.to(device)
    actor = Actor(lambda: policy, environments, noise, steps, every, nullcontext, record)
    actor.reset(seeds)
    return actor


@pytest.mark.parametrize("environment", ["cartpole_memory", "pendulum_memory"])
@pytest.mark.parametrize("keys", POLICIES.values(), ids=POLICIES)
@torch.no_grad()
def test_a_rollout_is_its_steps_one_by_one(keys: dict[str, Any], environment: str) -> None:
    """States are zeroed exactly where an episode begins; a truncated step is followed by the
    value of its own final observation, with the state carried there.
    """
    steps = 30
    where = {"name": environment, "episode_limit": 9}
    actor = actor_of(steps, 10, policy={"hidden": 6, **keys}, environment=where)
    policy = actor.policy()
    found = actor.collect()
    environments = build_environments(
        config_of(environment=where).environment, 4, CPU, torch.float64
    )
    seen, starts = environments.reset(SEEDS), torch.ones(4, dtype=torch.bool)
    state, cut_off = policy.initial_state(4), 0
    for step in range(steps):
        assert torch.equal(found.observations[step], seen)
        assert torch.equal(found.starts[step], starts)
        if step % 10 == 0:
            for name in {"actor", "critic", "both"} & state.keys():
                assert torch.equal(found.states[name][step // 10], state[name])
        fresh = policy.initial_state(4)
        state = {
            k: torch.where(starts.view(-1, *[1] * (v.dim() - 1)), fresh[k], v)
            for k, v in state.items()
        }
        acted = policy.act(seen, torch.zeros_like(starts), state)
        drawn = uniform(NOISE, step, numbers=policy.actions.draws)
        actions = policy.actions.sample(acted.outputs, drawn)
        assert torch.equal(found.actions[step], actions)
        wanted = policy.actions.log_prob(acted.outputs, actions)
        assert torch.allclose(found.log_probs[step], wanted, atol=1e-14)
        assert torch.allclose(found.values[step], acted.values, atol=1e-14)
        transition = environments.step(policy.actions.for_environment(actions))
        assert torch.equal(found.rewards[step], transition.rewards)
        assert torch.equal(found.terminated[step], transition.terminated)
        assert torch.equal(found.truncated[step], transition.truncated)
        follows = policy.value(transition.final_observations, acted.state)
        goes_on = ~transition.terminated
        assert torch.allclose(found.next_values[step][goes_on], follows[goes_on], atol=1e-13)
        cut_off += int((transition.truncated & goes_on).sum())
        seen, state = transition.observations, acted.state
        starts = transition.terminated | transition.truncated
    assert cut_off >= 2


def test_two_rollouts_are_one_of_twice_the_length() -> None:
    """The policy's state, the environments and the noise go on where they were."""
    twice, once = actor_of(10, 5), actor_of(20, 5)
    first, second = (_copied(twice.collect()) for _ in range(2))
    whole = once.collect()
    for name in ("observations", "starts", "actions", "log_probs", "rewards", "terminated"):
        parts = torch.cat([getattr(first, name), getattr(second, name)])
        assert torch.equal(parts, getattr(whole, name)), name
    for name, states in whole.states.items():
        assert torch.equal(torch.cat([first.states[name], second.states[name]]), states)
    assert torch.allclose(first.next_values[-1], whole.next_values[9], atol=1e-13)


def again(body: Callable[[], None]) -> Callable[[], None]:
    """In place of a CUDA graph: the same, kernel by kernel."""
    return body


HOW = [
    pytest.param(lambda: again, CPU, id="again"),
    pytest.param(gpu_recorder, torch.device("cuda"), marks=pytest.mark.gpu, id="graph"),
]


@pytest.mark.parametrize(("recorder", "device"), HOW)
@pytest.mark.parametrize("environment", ["cartpole_memory", "pendulum_memory"])
@pytest.mark.parametrize("keys", POLICIES.values(), ids=POLICIES)
def test_recorded_steps_are_the_same_steps(
    keys: dict[str, Any],
    environment: str,
    recorder: Callable[[], Recorder],
    device: torch.device,
) -> None:
    """Bit for bit over three rollouts; and when going on from what was saved after the second."""
    keys = {
        "policy": {"hidden": 6, **keys},
        "environment": {"name": environment, "episode_limit": 9},
    }
    plain, graphed, resumed = (
        actor_of(12, 6, how, device, **keys) for how in (None, recorder(), recorder())
    )
    for number in range(3):
        wanted, found = plain.collect(), graphed.collect()
        _equal(found, wanted)
        if number == 1:
            saved = {name: tensor.clone() for name, tensor in graphed.state_dict().items()}
            resumed.collect()
            resumed.load_state_dict(saved, graphed.steps_done)
    _equal(resumed.collect(), wanted)
    assert wanted.truncated.any()


@pytest.mark.parametrize("environment", ["cartpole_memory", "pendulum_memory"])
def test_episodes_drawn_ahead_are_the_same_episodes(environment: str) -> None:
    """Over three rollouts in which environments begin several episodes at different steps."""
    where = {"name": environment, "episode_limit": 5}
    plain, ahead = (actor_of(12, 6, environment=where) for _ in range(2))
    environments = ahead.environments
    assert isinstance(environments, TensorEnvironments)
    environments.foresees = True
    for _ in range(3):
        _equal(ahead.collect(), plain.collect())
    assert int(environments.episodes.min()) >= 7


def test_what_lies_in_what_is_overwritten_is_copied_first() -> None:
    """A step that hands on two tensors crosswise, and a view."""
    here = {"a": torch.tensor([1.0]), "b": torch.tensor([2.0]), "part": torch.tensor([0.0])}

    def cross() -> None:
        here.update(a=here["b"], b=here["a"], part=here["a"][:1])

    do = recorded(cross, lambda: here, here.update, again)
    do()
    do()
    do()
    assert [float(here[name]) for name in ("a", "b", "part")] == [2.0, 1.0, 1.0]


def _equal(found: Rollout, wanted: Rollout) -> None:
    for name, value in vars(wanted).items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(getattr(found, name), value), name
    for name, state in wanted.states.items():
        assert torch.equal(found.states[name], state), name


def _copied(rollout: Rollout) -> Rollout:
    copies = {
        name: value.clone()
        if isinstance(value, torch.Tensor)
        else {key: state.clone() for key, state in value.items()}
        for name, value in vars(rollout).items()
    }
    return Rollout(**copies)
