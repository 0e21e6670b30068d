"""The on-policy source: budgets, minibatches, who owns which environment, and going on."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from collectors import batches, collector_of, config_of

from drumline.config import Precision
from drumline.errors import BadInput
from drumline.tasks.clstm_ppo.policy import Policy
from drumline.training.batches import cloned
from drumline.training.source import Cursor, ShareOfStep, StepBatch

SHARE = ShareOfStep(0, (1,), 16, 8)
PER_ROLLOUT = 4  # two passes over 32 transitions by 16
POLICIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 3, "features": 4, "attention_heads": 2, "layer_norm": True},
    "loop": {"sequences": "loop", "layers": 2},
    "shared": {"shared": True, "sequences": "fused"},
}


def judged_again(policy: Policy, batch: StepBatch) -> torch.Tensor:
    """The ratio of an action's probability now to that when it was taken."""
    data = batch.data
    with torch.no_grad():
        judged = policy(data["observations"], data["starts"], data["actions"], data.states)
    return torch.exp(judged.log_probs - data["log_probs"])


@pytest.mark.parametrize(("precision", "bound"), [(Precision.FP64, 1e-12), (Precision.FP32, 1e-5)])
@pytest.mark.parametrize("length", [8, 4])
@pytest.mark.parametrize("keys", POLICIES.values(), ids=POLICIES)
def test_before_any_update_the_ratio_is_one(
    keys: dict[str, Any], length: int, precision: Precision, bound: float
) -> None:
    """In the first rollout and, with scales that have moved, in the next ones."""
    config = config_of(policy={"hidden": 6, **keys}, sequence_length=length)
    collector, policy = collector_of(config, precision)
    for batch in collector.open(replace(SHARE, granularity=length), Cursor()):
        assert float((judged_again(policy, batch) - 1).abs().max()) < bound
    assert float(policy.observation_scale.max()) > 1  # positions hardly leave 0


def test_a_budget_of_steps_ends_the_source() -> None:
    collector, _ = collector_of(config_of(total_steps=3 * 32 + 31))
    assert collector.planned_steps(16) == 3 * PER_ROLLOUT
    found = batches(collector)
    assert len(found) == 3 * PER_ROLLOUT
    assert collector.counts.environment_steps == 3 * 32
    assert [batch.epoch for batch in found] == [0] * 4 + [1] * 4 + [2] * 4
    assert [batch.planned for batch in found] == list(range(12))
    assert [batch.cursor for batch in found[:5]] == [
        *(Cursor(0, 16 * done) for done in (1, 2, 3)), Cursor(1, 0), Cursor(1, 16),
    ]  # fmt: skip
    assert all(batch.count == batch.global_count == 16 for batch in found)


def test_a_budget_of_episodes_ends_the_source_once_so_many_have_ended() -> None:
    collector, _ = collector_of(config_of(total_steps=None, num_episodes=9))
    # At most (9 + 4) * 11 steps in 5 rollouts of 32.
    assert collector.planned_steps(16) == 5 * PER_ROLLOUT
    found = batches(collector)
    ended = [int(batch.data["starts"].sum()) for batch in found[::PER_ROLLOUT]]
    assert collector.counts.episodes >= 9
    before, _ = collector_of(config_of(total_steps=32 * (len(ended) - 1)))
    batches(before)
    assert before.counts.episodes < 9


def test_every_pass_goes_over_all_transitions() -> None:
    collector, _ = collector_of(config_of(sequence_length=4))
    found = batches(collector, PER_ROLLOUT)
    for first in (0, 2):
        taken = torch.cat([b.data["observations"].flatten(0, 1) for b in found[first : first + 2]])
        assert len(torch.unique(taken, dim=0)) == 32
    assert not torch.equal(found[0].data["actions"], found[2].data["actions"])


@pytest.mark.parametrize("weights", [(1, 1), (3, 1)])
def test_ranks_together_do_what_one_does(weights: tuple[int, int]) -> None:
    """Here without scales, whose sums over ranks need ranks; with them see the integration test."""
    plain = {"observations": False, "rewards": False, "advantages": False}
    config = config_of(normalise=plain, sequence_length=4)
    whole = batches(collector_of(config)[0])
    ranks = [
        batches(collector_of(config)[0], rank=rank, weights=weights) for rank in range(len(weights))
    ]
    for one, parts in zip(whole, zip(*ranks, strict=True), strict=True):
        assert parts[0].counts == parts[1].counts
        assert sum(parts[0].counts) == 16
        assert [part.count for part in parts] == list(parts[0].counts)
        assert parts[1].first == parts[0].count
        for name, tensor in one.data.steps.items():
            there = [part.data[name] for part in parts if part.data is not None]
            assert torch.allclose(torch.cat(there, dim=1).double(), tensor.double(), atol=1e-13)


def test_equal_ranks_have_equal_shares_of_every_minibatch() -> None:
    collector, _ = collector_of(config_of())
    for batch in batches(collector, weights=(1, 1)):
        assert batch.counts == (8, 8)


def test_the_rest_of_a_rollout_can_be_left_out() -> None:
    collector, _ = collector_of(config_of())
    found = []
    for batch in collector.open(SHARE, Cursor()):
        found.append(batch)
        if batch.planned == 1:
            collector.abandon()
    assert [batch.planned for batch in found] == [0, 1, 4, 5, 6, 7, 8, 9, 10, 11]
    assert found[2].cursor == Cursor(1, 16)


@pytest.mark.parametrize("after", [4, 5, 7])
@pytest.mark.parametrize("environment", ["cartpole_memory", "gymnasium"])
def test_going_on_gives_the_very_same_batches(after: int, environment: str) -> None:
    """Between rollouts and within one, with the scales, the state of every environment, and the
    policy's memory as they were.
    """
    where: dict[str, Any] = {"name": environment}
    where |= {"id": "CartPole-v1", "observed": [0, 2]} if environment == "gymnasium" else {}
    config = config_of(environment=where, policy={"hidden": 6, "window": 3, "features": 4})
    first, policy = collector_of(config)
    stream = first.open(SHARE, Cursor())
    for _ in range(after):
        last = next(stream)
    saved = _copied(first.state_dict())
    weights = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    rest = [cloned(batch.data) for batch in stream]
    second, other = collector_of(config)
    other.load_state_dict(weights)
    second.load_state_dict(saved)
    again = [batch.data for batch in second.open(SHARE, last.cursor)]
    assert len(again) == len(rest) == 12 - after
    for ours, theirs in zip(again, rest, strict=True):
        for name, tensor in theirs.steps.items():
            assert torch.equal(ours[name], tensor), name
        assert all(torch.equal(ours.states[k], v) for k, v in theirs.states.items())
    assert second.counts.episodes == first.counts.episodes
    for collector in (first, second):
        collector.close()


def test_going_on_after_a_rollout_was_left_out_begins_the_next() -> None:
    first, _ = collector_of(config_of())
    stream = first.open(SHARE, Cursor())
    batch = next(stream)
    first.abandon()
    saved = _copied(first.state_dict())
    assert saved["steps"] is None
    second, _ = collector_of(config_of())
    second.load_state_dict(saved)
    following = next(second.open(SHARE, batch.cursor))
    assert following.planned == 4
    assert torch.equal(following.data["observations"], next(stream).data["observations"])


def test_more_ranks_than_environments_are_refused() -> None:
    collector, _ = collector_of(config_of(environments=2))
    with pytest.raises(BadInput, match="cannot be shared by 3 ranks"):
        batches(collector, 1, weights=(1, 1, 1))


def test_episodes_alone_need_a_bound_on_their_length() -> None:
    config = config_of(
        total_steps=None, num_episodes=5, environment={"name": "recall:RecallConfig"}
    )
    collector, _ = collector_of(config)
    with pytest.raises(BadInput, match="may be of any length"):
        collector.planned_steps(16)


def test_scaled_rewards_and_advantages_have_unit_scale() -> None:
    config = config_of(environment={"name": "pendulum_memory"}, rollout_steps=64, total_steps=2560)
    collector, _ = collector_of(config)
    found = batches(collector, 1, global_batch=256)[0].data
    assert float(found["advantages"].mean()) == pytest.approx(0, abs=1e-12)
    assert float(found["advantages"].std(correction=0)) == pytest.approx(1, rel=1e-6)
    assert 0.1 < float(found["returns"].abs().mean()) < 10  # unscaled they are hundreds


def _copied(state: Any) -> Any:
    if isinstance(state, torch.Tensor):
        return state.clone()
    return {k: _copied(v) for k, v in state.items()} if isinstance(state, dict) else state


def test_every_rank_has_an_environment_however_small_its_share() -> None:
    collector, _ = collector_of(config_of(normalise={"observations": False}))
    (batch,) = batches(collector, 1, rank=1, weights=(31, 1))
    assert sum(batch.counts) == 16
    assert collector.actor is not None and collector.actor.environments.count == 1
