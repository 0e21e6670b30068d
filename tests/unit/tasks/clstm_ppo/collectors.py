"""Collectors of one process, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch
from single_process import world

from drumline.config import Precision
from drumline.tasks.clstm_ppo.collector import Collector
from drumline.tasks.clstm_ppo.config import CLSTMPPOConfig
from drumline.tasks.clstm_ppo.environments.build import build_environments
from drumline.tasks.clstm_ppo.policy import Policy
from drumline.training.precision import Arithmetic
from drumline.training.source import Cursor, ShareOfStep, StepBatch

CPU = torch.device("cpu")


def config_of(**keys: Any) -> CLSTMPPOConfig:
    """Four CartPoles with short episodes, rollouts of eight steps, and a small policy."""
    return CLSTMPPOConfig.model_validate(
        {
            "environment": {"name": "cartpole_memory", "episode_limit": 11},
            "environments": 4,
            "rollout_steps": 8,
            "rollout_epochs": 2,
            "total_steps": 3 * 32,
            "policy": {"hidden": 6, "heads": [5]},
            **keys,
        }
    )


def collector_of(
    config: CLSTMPPOConfig, precision: Precision = Precision.FP64
) -> tuple[Collector, Policy]:
    """A collector and its policy, with weights that make every observation matter."""
    arithmetic = Arithmetic(precision, CPU)
    one = build_environments(config.environment, 1, CPU, arithmetic.weights)
    torch.manual_seed(0)
    policy = Policy(one.observation_space.size, one.action_space, config.policy)
    for parameter in policy.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    policy.to(arithmetic.weights)
    limit = one.episode_limit
    one.close()
    return Collector(config, 7, world(), lambda: policy, arithmetic, limit), policy


def batches(
    collector: Collector,
    count: int | None = None,
    *,
    global_batch: int = 16,
    rank: int = 0,
    weights: Sequence[int] = (1,),
    cursor: Cursor = Cursor(),  # noqa: B008 - it is frozen
) -> list[StepBatch]:
    """The next batches, all that there are if `count` is None."""
    granularity = collector.config.granularity
    share = ShareOfStep(rank, tuple(weights), global_batch, granularity)
    return list(islice(collector.open(share, cursor), count))
