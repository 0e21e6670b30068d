"""Whole sequences as samples, and who takes which."""

import pytest
import torch

from drumline.tasks.clstm_ppo.minibatches import Sequences, minibatch_order, sequences_of
from drumline.tasks.clstm_ppo.rollout import Rollout
from drumline.training.batches import cloned, narrow, to_device


@pytest.mark.parametrize(("sequences", "size"), [(12, 4), (8, 8), (8, 1), (4096, 1024)])
def test_a_pass_takes_every_sequence_once_and_one_of_each_block(sequences: int, size: int) -> None:
    order = minibatch_order(3, 5, 1, sequences, size)
    minibatches = sequences // size
    assert order.shape == (minibatches, size)
    assert sorted(order.flatten().tolist()) == list(range(sequences))
    assert torch.equal(order // minibatches, torch.arange(size).expand(minibatches, size))


def test_the_order_changes_with_seed_rollout_and_pass() -> None:
    orders = [
        minibatch_order(*keys, 64, 8) for keys in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    ]
    assert all(not torch.equal(orders[0], other) for other in orders[1:])
    assert torch.equal(orders[0], minibatch_order(0, 0, 0, 64, 8))


def numbered() -> tuple[Rollout, Sequences]:
    """Six steps in two environments as sequences of three; 100 e + t stands everywhere."""
    steps = torch.arange(6).unsqueeze(1) + 100 * torch.arange(2)
    whole = steps.double()
    ends = torch.zeros(6, 2, dtype=torch.bool)
    rollout = Rollout(
        observations=whole.unsqueeze(-1),
        starts=ends,
        actions=steps,
        log_probs=whole,
        values=whole,
        next_values=whole,
        rewards=whole,
        terminated=ends,
        truncated=ends,
        states={"memory": whole[::3].unsqueeze(-1)},
    )
    return rollout, sequences_of(rollout, 3, whole, whole + 0.5)


def test_sequences_go_by_environment_then_by_time_each_with_its_state() -> None:
    _, found = numbered()
    assert (found.length, found.count) == (3, 4)
    wanted = [[0, 1, 2], [3, 4, 5], [100, 101, 102], [103, 104, 105]]
    assert found["actions"].t().tolist() == wanted
    assert found["observations"].squeeze(-1).t().tolist() == wanted
    assert (found["returns"] - 0.5).t().tolist() == wanted
    assert found.states["memory"].flatten().tolist() == [0, 3, 100, 103]


def test_they_are_cut_by_transitions_and_picked_by_number() -> None:
    _, all_of_them = numbered()
    middle = narrow(all_of_them, 3, 6)
    assert middle["actions"].t().tolist() == [[3, 4, 5], [100, 101, 102]]
    assert middle.states["memory"].flatten().tolist() == [3, 100]
    picked = all_of_them.pick(torch.tensor([3, 0]))
    assert picked["actions"].t().tolist() == [[103, 104, 105], [0, 1, 2]]
    assert picked.states["memory"].flatten().tolist() == [103, 0]


def test_copies_and_moves_keep_all() -> None:
    _, found = numbered()
    there, copy = to_device(found, torch.device("meta")), cloned(found)
    assert there["actions"].is_meta and there.states["memory"].is_meta
    found["actions"].zero_()
    assert copy["actions"].sum() > 0
