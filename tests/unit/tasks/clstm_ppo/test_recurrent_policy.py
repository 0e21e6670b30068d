"""The policy step by step and over sequences; what it remembers and what it forgets."""

from typing import Any

import pytest
import torch
from torch import Tensor

from drumline.tasks.clstm_ppo.config import PolicyConfig
from drumline.tasks.clstm_ppo.environments.spaces import ActionSpace, Box, Discrete, MultiDiscrete
from drumline.tasks.clstm_ppo.features import windows_of
from drumline.tasks.clstm_ppo.policy import Judged, Policy, State

STEPS, COUNT, FEATURES = 12, 5, 3
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two layers": {"layers": 2, "layer_norm": True},
    "shared": {"shared": True, "heads": []},
    "window": {"window": 4, "features": 6},
    "window of one": {"window": 1, "features": 6, "layer_norm": True},
    "attention": {"window": 5, "features": 6, "attention_heads": 2, "layer_norm": True},
    "zeroed": {"carry_state": False},
    "zeroed window": {"carry_state": False, "window": 3, "features": 4},
}


def policy_of(
    keys: dict[str, Any], space: ActionSpace | None = None, dtype: torch.dtype = torch.float64
) -> Policy:
    torch.manual_seed(3)
    config = PolicyConfig.model_validate({"hidden": 8, "heads": [7], **keys})
    policy = Policy(FEATURES, space or Discrete(3), config).to(dtype)
    for parameter in policy.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    policy.observation_mean += 0.3
    policy.observation_scale *= 0.7
    return policy


def experience(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    torch.manual_seed(4)
    starts = torch.rand(STEPS, COUNT) < 0.2
    starts[0] = True
    starts[1:, 0] = False
    return torch.randn(STEPS, COUNT, FEATURES, dtype=dtype), starts


def acted(
    policy: Policy, observations: Tensor, starts: Tensor, state: State
) -> tuple[Tensor, Tensor, list[State]]:
    """Outputs and values step by step, and the state before every step."""
    outputs, values, states = [], [], []
    for seen, start in zip(observations, starts, strict=True):
        states.append(state)
        step = policy.act(seen, start, state)
        outputs.append(step.outputs)
        values.append(step.values)
        state = step.state
    return torch.stack(outputs), torch.stack(values), states


@pytest.mark.parametrize("space", [Discrete(3), MultiDiscrete((2, 4)), Box((-1.0,), (2.0,))])
@pytest.mark.parametrize("keys", CONFIGS.values(), ids=CONFIGS)
@torch.no_grad()
def test_sequences_are_judged_as_they_were_acted(keys: dict[str, Any], space: ActionSpace) -> None:
    """From the start and from the middle, where the state before is given."""
    policy = policy_of(keys, space)
    observations, starts = experience()
    outputs, values, states = acted(policy, observations, starts, policy.initial_state(COUNT))
    noise = torch.rand(STEPS, COUNT, policy.actions.draws, dtype=torch.float64)
    actions = policy.actions.sample(outputs, noise)
    wanted = policy.actions.log_prob(outputs, actions)
    for first in (0, 5):
        judged: Judged = policy(
            observations[first:], starts[first:], actions[first:], states[first]
        )
        assert torch.allclose(judged.log_probs, wanted[first:], atol=1e-12)
        assert torch.allclose(judged.values, values[first:], atol=1e-12)
        assert torch.allclose(judged.entropies, policy.actions.entropy(outputs[first:]), atol=1e-12)


@pytest.mark.parametrize("keys", CONFIGS.values(), ids=CONFIGS)
@torch.no_grad()
def test_an_episode_knows_nothing_of_the_one_before(keys: dict[str, Any]) -> None:
    """From exactly the step that begins one; without a start the past does matter, but to a policy
    whose state is zeroed and that has no window.
    """
    policy = policy_of(keys)
    observations, starts = experience()
    begin = 6
    starts[1:] = False
    starts[begin, 1:] = True
    other = observations.clone()
    other[:begin] += 1.0
    first, second = (
        acted(policy, seen, starts, policy.initial_state(COUNT))[0]
        for seen in (observations, other)
    )
    assert torch.equal(first[begin:, 1:], second[begin:, 1:])
    remembers = policy.config.carry_state or (policy.config.window or 1) > 1
    assert torch.equal(first[begin, 0], second[begin, 0]) != remembers


@torch.no_grad()
def test_a_zeroed_state_sees_one_observation() -> None:
    policy = policy_of({"carry_state": False})
    observations, starts = experience()
    outputs, _, _ = acted(policy, observations, starts, policy.initial_state(COUNT))
    alone = policy.act(
        observations[7], torch.ones(COUNT, dtype=torch.bool), policy.initial_state(COUNT)
    )
    assert torch.equal(outputs[7], alone.outputs)


@pytest.mark.parametrize("keys", CONFIGS.values(), ids=CONFIGS)
@torch.no_grad()
def test_the_value_beyond_a_step_is_that_of_the_next_one(keys: dict[str, Any]) -> None:
    policy = policy_of(keys)
    observations, starts = experience()
    starts[1:] = False
    _, values, states = acted(policy, observations, starts, policy.initial_state(COUNT))
    assert torch.allclose(policy.value(observations[5], states[5]), values[5], atol=1e-14)


def test_all_parameters_get_a_gradient_in_one_forward() -> None:
    """DDP reduces what its forward has used; a parameter left out would make it wait."""
    for keys in CONFIGS.values():
        policy = policy_of(keys, Box((-1.0,), (2.0,)))
        observations, starts = experience()
        actions = torch.randn(STEPS, COUNT, 1, dtype=torch.float64)
        judged = policy(observations, starts, actions, policy.initial_state(COUNT))
        torch.autograd.backward(sum((part.sum() for part in judged), torch.tensor(0.0)))
        unused = [name for name, p in policy.named_parameters() if p.grad is None]
        assert unused == []


def test_windows_hold_the_latest_observations_of_the_episode() -> None:
    """Two environments; 0 begins an episode at step 2, 1 goes on from two observations."""
    observations = torch.tensor([[1, 10], [2, 20], [3, 30]]).unsqueeze(-1).double()
    history = torch.tensor([[-2, 8], [-1, 9]]).unsqueeze(-1).double()
    starts = torch.tensor([[False, False], [False, False], [True, False]])
    windows, lengths = windows_of(observations, starts, history, torch.tensor([1, 2]))
    rows = windows[:, :, 0].t().view(3, 2, 3).tolist()
    taken = [
        [row[: int(length)] for row, length in zip(step, long, strict=True)]
        for step, long in zip(rows, lengths.view(3, 2), strict=True)
    ]
    assert taken == [
        [[-1, 1], [8, 9, 10]],
        [[-1, 1, 2], [9, 10, 20]],
        [[3], [10, 20, 30]],
    ]


def test_the_first_stage_starts_from_zero_in_every_window() -> None:
    """The features of a full window depend on its observations only, not on older ones."""
    policy = policy_of({"window": 3, "features": 6, "carry_state": False})
    observations, starts = experience()
    starts[1:] = False
    other = observations.clone()
    other[:4] += 1.0
    with torch.no_grad():
        first, second = (
            acted(policy, seen, starts, policy.initial_state(COUNT))[0]
            for seen in (observations, other)
        )
    assert torch.equal(first[6:], second[6:])
    assert not torch.equal(first[5], second[5])
