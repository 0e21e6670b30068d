"""Traces of a task whose source works on the device: CLSTM-PPO acts there, and keeps a rollout."""

from __future__ import annotations

import functools
from collections import Counter

import pytest

from drumline.bench.memory_trace import trace_task
from drumline.config import RunConfig
from drumline.planning.memory_trace import MemoryTrace
from drumline.tasks.clstm_ppo.config import PolicyConfig
from drumline.tasks.clstm_ppo.environments.spaces import Discrete
from drumline.tasks.clstm_ppo.policy import Policy
from drumline.tasks.clstm_ppo.task import CLSTMPPOTask

STEPS, EPOCHS, HIDDEN = 16, 2, 8
FEATURES, ACTIONS = 2, 2  # of the cart without velocities
BY_TRANSITION = 4 * (FEATURES + ACTIONS + 1 + 1) + 8 + 3
"""Bytes of a step in one environment: observations, outputs, value and reward in fp32, the action
as an int64, and whether it was a start, an end or a cut."""


@functools.cache
def traced(environments: int, ranks: int = 1) -> MemoryTrace:
    task = {
        "name": "clstm_ppo",
        "environment": {"name": "cartpole_memory"},
        "environments": environments,
        "rollout_steps": STEPS,
        "rollout_epochs": EPOCHS,
        "total_steps": 100 * environments * STEPS,
        "policy": {"hidden": HIDDEN, "heads": [4]},
    }
    keys = {"task": task, "global_batch": environments * STEPS // 2}
    return trace_task(CLSTMPPOTask(), RunConfig.model_validate(keys), world_size=ranks)


def most(trace: MemoryTrace, category: str) -> int:
    """The most bytes of a category at any moment."""
    now, found = Counter[str](), 0
    for event in filter(None, trace.events):
        number = abs(event) - 1
        now[trace.categories[number]] += trace.sizes[number] * (1 if event > 0 else -1)
        found = max(found, now[category])
    return found


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_rank_keeps_the_rollout_of_its_environments(ranks: int) -> None:
    few, many = (most(traced(environments, ranks), "batch") for environments in (64, 128))
    assert many - few >= 64 // ranks * STEPS * BY_TRANSITION
    assert few >= 64 // ranks * STEPS * BY_TRANSITION


def test_a_minibatch_is_what_a_forward_holds() -> None:
    trace = traced(64)
    assert (trace.share, trace.micro_batch) == (512, 512)
    assert traced(64, ranks=2).share == 256


def test_weights_and_moments_are_those_of_the_policy() -> None:
    policy = Policy(FEATURES, Discrete(ACTIONS), PolicyConfig(hidden=HIDDEN, heads=[4]), 10.0)
    weights = sum(4 * parameter.numel() for parameter in policy.parameters())
    tensors = len(list(policy.parameters()))
    trace = traced(64)
    assert weights <= most(trace, "parameters") <= 2 * weights  # cuDNN's flat copy is on the way
    assert most(trace, "optimizer") == 2 * weights + 4 * tensors  # and a step count for each


def test_where_episodes_begin_is_not_guessed() -> None:
    assert traced(64).selections == ()
