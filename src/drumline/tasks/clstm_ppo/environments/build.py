"""Environments from their config."""

from __future__ import annotations

import torch

from drumline.config.section import import_object
from drumline.tasks.clstm_ppo.environments.config import EnvironmentConfig
from drumline.tasks.clstm_ppo.environments.interface import Environments


def build_environments(
    config: EnvironmentConfig, count: int, device: torch.device, dtype: torch.dtype
) -> Environments:
    """A number of environments of the kind that a config names.

    Args:
        config: Which kind.
        count: How many.
        device: Where actions come from and observations go to.
        dtype: Of observations and rewards.
    """
    built: Environments = import_object(config.implementation)(config, count, device, dtype)
    return built
