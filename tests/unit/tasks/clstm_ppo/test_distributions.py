"""Distributions over actions, against torch.distributions and against integrals."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import (
    AffineTransform,
    Categorical,
    Independent,
    Normal,
    TanhTransform,
    TransformedDistribution,
)

from drumline.errors import BadInput
from drumline.tasks.clstm_ppo.config import PolicyConfig
from drumline.tasks.clstm_ppo.distributions import Actions, SquashedGaussian, build_actions
from drumline.tasks.clstm_ppo.environments.spaces import Box, Discrete, MultiDiscrete
from drumline.training.noise import uniform

BOX = Box((-2.0, 0.0), (2.0, 5.0))
SPACES = [Discrete(4), MultiDiscrete((2, 3)), BOX]


def actions_over(space: Discrete | MultiDiscrete | Box, continuous: str = "squashed") -> Actions:
    config = PolicyConfig.model_validate({"continuous": continuous, "initial_deviation": 0.7})
    return build_actions(space, config).double()


def outputs_for(actions: Actions, *shape: int) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(*shape, actions.outputs, dtype=torch.float64)


def noise(actions: Actions, *shape: int) -> Tensor:
    return uniform(5, torch.arange(math.prod(shape)).view(shape), numbers=actions.draws)


@pytest.mark.parametrize("continuous", ["squashed", "clipped"])
@pytest.mark.parametrize("space", SPACES)
def test_a_whole_action_has_one_log_probability(
    space: Discrete | MultiDiscrete | Box, continuous: str
) -> None:
    actions = actions_over(space, continuous)
    outputs = outputs_for(actions, 6, 5)
    taken = actions.sample(outputs, noise(actions, 6, 5))
    assert taken.shape == (6, 5, *actions.shape)
    assert actions.log_prob(outputs, taken).shape == (6, 5)
    assert actions.entropy(outputs).shape == (6, 5)
    assert actions.likeliest(outputs).shape == taken.shape
    assert actions.for_environment(taken).shape == taken.shape


def test_choices_are_torchs_categorical() -> None:
    actions = actions_over(MultiDiscrete((2, 3)))
    outputs = outputs_for(actions, 50)
    taken = actions.sample(outputs, noise(actions, 50))
    peers = [Categorical(logits=outputs[:, :2]), Categorical(logits=outputs[:, 2:])]
    wanted = sum(peer.log_prob(taken[:, i]) for i, peer in enumerate(peers))
    assert torch.allclose(actions.log_prob(outputs, taken), torch.as_tensor(wanted), atol=1e-14)
    entropy = torch.as_tensor(sum(peer.entropy() for peer in peers))
    assert torch.allclose(actions.entropy(outputs), entropy, atol=1e-14)


def test_choices_come_as_often_as_they_are_likely() -> None:
    actions = actions_over(Discrete(4))
    outputs = torch.tensor([0.0, 1.0, -1.0, 0.5], dtype=torch.float64)
    many = 40_000
    taken = actions.sample(outputs.expand(many, 4), noise(actions, many))
    often = torch.bincount(taken, minlength=4) / many
    wanted = torch.softmax(outputs, 0)
    assert float((often - wanted).abs().max()) < 4 * 0.5 / many**0.5
    assert int(actions.likeliest(outputs)) == 1


def test_no_choice_is_beyond_the_last_option() -> None:
    actions = actions_over(Discrete(3)).float()
    nearly_one = torch.tensor([[1 - 2.0**-53]], dtype=torch.float64)
    assert int(actions.sample(torch.zeros(1, 3), nearly_one)) == 2


def test_gaussian_is_torchs_normal_and_its_sample_inverts_the_distribution() -> None:
    actions = actions_over(BOX, "clipped")
    outputs = outputs_for(actions, 30)
    drawn = noise(actions, 30)
    taken = actions.sample(outputs, drawn)
    peer = Normal(outputs, torch.tensor(0.7, dtype=torch.float64))
    assert torch.allclose(peer.cdf(taken), drawn, atol=1e-12)
    both = Independent(peer, 1)
    assert torch.allclose(actions.log_prob(outputs, taken), both.log_prob(taken), atol=1e-13)
    assert torch.allclose(actions.entropy(outputs), both.entropy(), atol=1e-13)
    wide = actions.for_environment(torch.tensor([[-9.0, 9.0]], dtype=torch.float64))
    assert wide.tolist() == [[-2.0, 5.0]]


def test_squashed_density_is_torchs_transformed_normal() -> None:
    actions = actions_over(BOX)
    outputs = outputs_for(actions, 30)
    before = actions.sample(outputs, noise(actions, 30))
    taken = actions.for_environment(before)
    middle = torch.tensor([0.0, 2.5], dtype=torch.float64)
    half = torch.tensor([2.0, 2.5], dtype=torch.float64)
    peer = TransformedDistribution(
        Normal(outputs, torch.tensor(0.7, dtype=torch.float64)),
        [TanhTransform(), AffineTransform(middle, half)],
    )
    wanted = peer.log_prob(taken).sum(dim=-1)
    assert torch.allclose(actions.log_prob(outputs, before), wanted, atol=1e-9)


def test_squashed_density_stays_finite_at_the_bounds() -> None:
    """tanh(50) is 1 in every precision: an inverse would be infinite. log(1 - tanh(x)^2) tends to
    log 4 - 2 |x|.
    """
    actions = actions_over(Box((-1.0,), (1.0,))).float()
    far = torch.tensor([[50.0]])
    gauss = float(Normal(0.0, 0.7).log_prob(torch.tensor(50.0)))
    found = float(actions.log_prob(torch.zeros(1, 1), far).detach())
    assert found == pytest.approx(gauss - (math.log(4) - 100), rel=1e-5)


@pytest.mark.parametrize("mean", [0.0, 0.8, -2.5])
def test_squashed_entropy_is_the_integral(mean: float) -> None:
    actions = actions_over(Box((-1.0,), (3.0,)))
    assert isinstance(actions, SquashedGaussian)
    before = np.linspace(mean - 9 * 0.7, mean + 9 * 0.7, 200_001)
    density = np.exp(-0.5 * ((before - mean) / 0.7) ** 2) / (0.7 * math.sqrt(2 * math.pi))
    log_density = np.log(density) - np.log(2 * (1 - np.tanh(before) ** 2))
    wanted = -np.trapezoid(density * log_density, before)
    found = float(actions.entropy(torch.tensor([mean], dtype=torch.float64)).detach())
    assert found == pytest.approx(wanted, abs=2e-4)


def test_squashing_needs_bounds() -> None:
    with pytest.raises(BadInput, match="needs bounds"):
        actions_over(Box((-math.inf,), (math.inf,)))
    actions_over(Box((-math.inf,), (math.inf,)), "clipped")
