"""Episodes counted over a whole rollout at once, against counting step by step."""

import pytest
import torch

from drumline.tasks.clstm_ppo.episodes import ended_episodes


@pytest.mark.parametrize("often", [0.0, 0.1, 0.6, 1.0])
def test_counting_at_once_is_counting_step_by_step(often: float) -> None:
    torch.manual_seed(1)
    steps, count = 23, 9
    rewards, ended = torch.randn(steps, count), torch.rand(steps, count) < often
    returns = torch.randn(count, dtype=torch.float64)
    lengths = torch.arange(count, dtype=torch.float64)
    found = ended_episodes(rewards, ended, returns.clone(), lengths.clone())
    number = return_sum = length_sum = 0.0
    for step in range(steps):
        returns, lengths = returns + rewards[step].double(), lengths + 1
        number += float(ended[step].sum())
        return_sum += float(returns[ended[step]].sum())
        length_sum += float(lengths[ended[step]].sum())
        returns, lengths = returns * ~ended[step], lengths * ~ended[step]
    assert float(found.number) == number
    assert float(found.return_sum) == pytest.approx(return_sum, abs=1e-9)
    assert float(found.length_sum) == length_sum
    assert found.running_returns.tolist() == pytest.approx(returns.tolist(), abs=1e-9)
    assert found.running_lengths.tolist() == lengths.tolist()
