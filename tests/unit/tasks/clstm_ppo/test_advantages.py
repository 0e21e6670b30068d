"""Generalised advantages against their definition, summed term by term in float64."""

import pytest
import torch
from torch import Tensor

from drumline.tasks.clstm_ppo.advantages import advantages, discounted_returns

GAMMA, LAMBDA = 0.93, 0.8
STEPS, COUNT = 11, 7


def experience() -> dict[str, Tensor]:
    torch.manual_seed(0)
    real = {
        name: torch.randn(STEPS, COUNT, dtype=torch.float64)
        for name in ("rewards", "values", "next_values")
    }
    ends = {name: torch.rand(STEPS, COUNT) < 0.15 for name in ("terminated", "truncated")}
    ends["terminated"][4, 0] = ends["truncated"][4, 0] = True
    return real | ends


def by_definition(given: dict[str, Tensor], step: int, place: int) -> float:
    """The sum over later steps of (gamma lambda)^l times the temporal difference, until an end."""
    total, factor = 0.0, 1.0
    for later in range(step, STEPS):
        here = {name: given[name][later, place].item() for name in given}
        follows = 0.0 if here["terminated"] else here["next_values"]
        total += factor * (here["rewards"] + GAMMA * follows - here["values"])
        if here["terminated"] or here["truncated"]:
            break
        factor *= GAMMA * LAMBDA
    return total


def test_advantages_are_their_definition() -> None:
    given = experience()
    found = advantages(**given, gamma=GAMMA, gae_lambda=LAMBDA)
    wanted = [[by_definition(given, t, e) for e in range(COUNT)] for t in range(STEPS)]
    assert found.tolist() == [pytest.approx(row, abs=1e-13) for row in wanted]


def test_truncation_counts_what_would_have_followed_and_termination_does_not() -> None:
    one = {"rewards": 1.0, "values": 0.25, "next_values": 8.0}
    given = {
        name: torch.tensor([[value, value]], dtype=torch.float64) for name, value in one.items()
    }
    found = advantages(
        **given,
        terminated=torch.tensor([[True, False]]),
        truncated=torch.tensor([[False, True]]),
        gamma=0.5,
        gae_lambda=0.9,
    )
    assert found.tolist() == [[1.0 - 0.25, 1.0 + 0.5 * 8.0 - 0.25]]


def test_running_returns_begin_anew_after_an_end() -> None:
    rewards = torch.tensor([[1.0], [2.0], [4.0], [8.0]])
    ended = torch.tensor([[False], [True], [False], [False]])
    sums, after = discounted_returns(rewards, ended, torch.tensor([10.0]), 0.5)
    assert sums.flatten().tolist() == [6.0, 5.0, 4.0, 10.0]
    assert after.tolist() == [10.0]
