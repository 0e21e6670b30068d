"""Counting episodes that ended in a rollout, their returns and lengths, all steps at once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Ended(NamedTuple):
    """Episodes that ended, as float64 scalars, and what the unfinished ones have so far, [E]."""

    number: Tensor
    return_sum: Tensor
    length_sum: Tensor
    running_returns: Tensor
    running_lengths: Tensor


def ended_episodes(
    rewards: Tensor, ended: Tensor, running_returns: Tensor, running_lengths: Tensor
) -> Ended:
    """Count the episodes that ended.

    Args:
        rewards: [T, E], undiscounted, as the environments gave them.
        ended: bool [T, E], whether an episode ended with a step.
        running_returns: float64 [E], rewards of the present episodes before the first step.
        running_lengths: float64 [E], their steps.
    """
    length = len(rewards)
    steps = torch.arange(length, device=rewards.device).unsqueeze(1)
    summed = running_returns + rewards.to(torch.float64).cumsum(dim=0)
    last_end = torch.where(ended, steps, -1).cummax(dim=0).values
    before = torch.cat([torch.full_like(last_end[:1], -1), last_end[:-1]])
    counted = before >= 0
    earlier = before.clamp(min=0)
    returns = summed - torch.where(counted, summed.gather(0, earlier), 0.0)
    lengths = torch.where(counted, steps - before, steps + 1 + running_lengths)
    last = last_end[-1]
    none_ended = last < 0
    rest = summed[-1] - torch.where(none_ended, 0.0, summed.gather(0, last.clamp(min=0)[None])[0])
    rest_length = torch.where(none_ended, running_lengths + length, length - 1.0 - last)
    return Ended(
        ended.sum(dtype=torch.float64),
        (returns * ended).sum(),
        (lengths * ended).sum(dtype=torch.float64),
        rest,
        rest_length.to(torch.float64),
    )
