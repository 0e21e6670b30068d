from __future__ import annotations

import math

import pytest
import torch
from sae_stand_ins import CPU

from drumline.tasks.sae.statistics import LatentActivity, geometric_median, input_scale


def rows(*points: tuple[float, ...]) -> torch.Tensor:
    return torch.tensor(points, dtype=torch.float64)


def test_geometric_median_of_a_triangle_is_its_fermat_point():
    # the point that sees all sides at 120 degrees
    # lies 1/sqrt(3) above the base of length 2
    found = geometric_median(rows((-1.0, 0.0), (1.0, 0.0), (0.0, 5.0)))
    torch.testing.assert_close(found, rows((0.0, 1 / math.sqrt(3)))[0], rtol=0, atol=1e-8)


def test_geometric_median_on_a_line_is_the_median():
    found = geometric_median(rows((0.0,), (1.0,), (2.0,), (3.0,), (100.0,)))
    assert found.item() == pytest.approx(2.0, abs=1e-6)


def test_geometric_median_ignores_how_far_an_outlier_is():
    cross = [(1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.0, -1.0)]
    near = geometric_median(rows(*cross, (10.0, 0.0)))
    far = geometric_median(rows(*cross, (1e6, 0.0)))
    torch.testing.assert_close(near, far, rtol=0, atol=1e-4)


def test_geometric_median_of_equal_points_is_that_point():
    assert geometric_median(rows((2.0, 3.0), (2.0, 3.0))).tolist() == [2.0, 3.0]


def test_input_scale_brings_the_mean_norm_to_the_root_of_the_width():
    points = rows((3.0, 4.0), (0.0, 15.0))  # norms 5 and 15
    assert input_scale(points) == pytest.approx(math.sqrt(2) / 10)
    assert (points * input_scale(points)).norm(dim=1).mean().item() == pytest.approx(math.sqrt(2))


def test_a_latent_is_dead_once_it_was_silent_for_enough_samples():
    activity = LatentActivity.start(3, 10, CPU)
    activity.update(torch.tensor([1.0, 0.0, 0.0]), 6)
    assert activity.dead.numbers().tolist() == []
    activity.update(torch.tensor([0.0, 0.0, 2.0]), 4)
    assert activity.dead.numbers().tolist() == [1]  # 0 has been silent for 4, 1 for 10, 2 for 0
    activity.update(torch.tensor([0.0, 0.0, 0.0]), 6)
    assert activity.dead.numbers().tolist() == [0, 1]
    activity.revive(torch.tensor([1]))
    assert activity.dead.numbers().tolist() == [0]
