"""Generalised advantage estimation (Schulman et al. 2016, arXiv 1506.02438), in one place."""

from __future__ import annotations

import torch
from torch import Tensor


def advantages(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """How much better each action was than the policy's value said, [T, E].

    After a termination nothing follows. After a truncation the value of what would have followed
    is counted, but no later advantage, which belongs to another episode.

    Args:
        rewards: [T, E].
        values: [T, E], of the observations that were acted on.
        next_values: [T, E], of the observations the actions led to, before any new episode.
        terminated: bool [T, E], whether the episode ended of itself with a step.
        truncated: bool [T, E], whether it was cut off there.
        gamma: Discount of a step.
        gae_lambda: Decay of later errors.
    """
    errors = rewards + gamma * next_values * ~terminated - values
    decays = gamma * gae_lambda * (~(terminated | truncated)).to(errors.dtype)
    found = torch.empty_like(errors)
    later = torch.zeros_like(errors[0])
    for step in reversed(range(len(errors))):
        later = errors[step] + decays[step] * later
        found[step] = later
    return found


def discounted_returns(
    rewards: Tensor, ended: Tensor, before: Tensor, gamma: float
) -> tuple[Tensor, Tensor]:
    """Running sums of past rewards, older ones discounted: what rewards are scaled by.

    Args:
        rewards: [T, E].
        ended: bool [T, E], whether an episode ended with a step; the next sum begins at 0.
        before: [E], the sums before the first step.
        gamma: Discount of a step.

    Returns:
        The sums [T, E], and those to go on from, [E].
    """
    found = torch.empty_like(rewards)
    for step in range(len(rewards)):
        before = gamma * before + rewards[step]
        found[step] = before
        before = before * ~ended[step]
    return found, before
