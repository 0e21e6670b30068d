"""Means and deviations of all that was seen, in parts."""

import numpy as np
import pytest
import torch
from single_process import world

from drumline.tasks.clstm_ppo.normalisers import LEAST_DEVIATION, RunningMoments, global_moments


def test_parts_together_are_the_whole() -> None:
    random = np.random.default_rng(0)
    samples = 1e4 + random.standard_normal((300, 3)) * [1.0, 1e-2, 50.0]
    moments = RunningMoments(3, torch.device("cpu"))
    for part in np.split(samples, [10, 11, 150]):
        moments.update(torch.from_numpy(part).view(-1, 1, 3), world())
    assert moments.count == 300
    assert moments.mean.tolist() == pytest.approx(samples.mean(axis=0).tolist(), rel=1e-12)
    assert moments.variance.tolist() == pytest.approx(samples.var(axis=0).tolist(), rel=1e-9)
    assert moments.deviation().tolist() == pytest.approx(samples.std(axis=0).tolist(), rel=1e-9)


def test_before_anything_was_seen_nothing_is_scaled_and_what_never_changes_hardly() -> None:
    moments = RunningMoments(1, torch.device("cpu"))
    assert moments.deviation().tolist() == [1.0]
    moments.update(torch.full((5, 1), 3.0), world())
    assert moments.deviation().tolist() == [LEAST_DEVIATION]


def test_a_state_goes_on() -> None:
    first, second = (RunningMoments(2, torch.device("cpu")) for _ in range(2))
    torch.manual_seed(0)
    parts = torch.randn(4, 6, 2)
    first.update(parts[0], world())
    second.load_state_dict(first.state_dict())
    first.update(parts[1], world())
    second.update(parts[1], world())
    assert torch.equal(first.variance, second.variance)
    assert first.count == second.count == 12


def test_moments_are_of_the_population() -> None:
    count, mean, variance = global_moments(torch.tensor([[1.0], [2.0], [6.0]]).double(), world())
    assert (count, mean.item(), variance.item()) == (3, 3.0, pytest.approx(14 / 3))
