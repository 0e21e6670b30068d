"""Playing whole episodes with a policy to see what it is worth."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from drumline.tasks.clstm_ppo.config import PlayConfig
from drumline.tasks.clstm_ppo.environments.interface import Environments
from drumline.tasks.clstm_ppo.policy import Policy
from drumline.training.noise import uniform

LOOK_EVERY = 16
"""Steps between looks whether all episodes are over: on a GPU each look is a wait."""


@torch.no_grad()
def play(
    policy: Policy,
    environments: Environments,
    seeds: Tensor,
    config: PlayConfig,
    autocast: Callable[[], AbstractContextManager[Any]],
) -> tuple[Tensor, Tensor, Tensor]:
    """Play the first episode of every environment, the policy's state carried from step to step.

    One episode each, so long episodes count as much as short ones.

    Args:
        policy: Who plays.
        environments: Where, E of them.
        seeds: int64 [E], of the environments, and of the noise where actions are samples.
        config: How.
        autocast: The context for the policy's forward.

    Returns:
        Returns [E] and lengths [E], float64, and bool [E], whether the episode came to its end
        within `config.most_steps`.
    """
    observations = environments.reset(seeds)
    starts = torch.ones(len(seeds), dtype=torch.bool, device=observations.device)
    returns = torch.zeros(len(seeds), dtype=torch.float64, device=observations.device)
    lengths, over = torch.zeros_like(returns), torch.zeros_like(starts)
    state = policy.initial_state(len(seeds))
    for step in range(config.most_steps):
        with autocast():
            acted = policy.act(observations, starts, state)
        outputs, state = acted.outputs.to(observations.dtype), acted.state
        if config.deterministic:
            actions = policy.actions.likeliest(outputs)
        else:
            noise = uniform(seeds, step, numbers=policy.actions.draws)
            actions = policy.actions.sample(outputs, noise)
        transition = environments.step(policy.actions.for_environment(actions))
        returns += torch.where(over, 0.0, transition.rewards.double())
        lengths += ~over
        starts = transition.terminated | transition.truncated
        over = over | starts
        observations = transition.observations
        if (step + 1) % LOOK_EVERY == 0 and bool(over.all()):
            break
    return returns, lengths, over
