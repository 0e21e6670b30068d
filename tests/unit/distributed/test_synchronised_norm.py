"""The norm over all ranks, in a group of one: it is torch's BatchNorm there."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from drumline.config import ClusterEnvironment, DistributedConfig, Mode
from drumline.distributed import open_world
from drumline.distributed.synchronised_norm import SynchronisedBatchNorm, synchronise_norms

ALONE = ClusterEnvironment("alone", 0, 1, 0, 1, "127.0.0.1", 0)
GROUP = DistributedConfig(mode=Mode.DISTRIBUTED, backend="gloo")


@pytest.mark.parametrize("shape", [(6, 3), (6, 3, 5), (4, 3, 2, 5)])
@pytest.mark.parametrize("options", [{}, {"momentum": None}, {"affine": False}])
def test_it_is_batch_norm(shape: tuple[int, ...], options: dict[str, object]) -> None:
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[len(shape)]
    theirs, ours = (nn.Sequential(kind(3, **options).double()) for _ in range(2))
    assert synchronise_norms(ours)
    assert isinstance(ours[0], SynchronisedBatchNorm)
    random = torch.Generator().manual_seed(0)
    with open_world(GROUP, ALONE):
        for _ in range(3):
            x = torch.randn(shape, dtype=torch.float64, generator=random) * 3 + 1
            inputs = [x.clone().requires_grad_() for _ in range(2)]
            outputs = [model(given) for model, given in zip((ours, theirs), inputs, strict=True)]
            torch.testing.assert_close(*outputs)
            weights = torch.randn(shape, dtype=torch.float64, generator=random)
            for output in outputs:
                (output * weights).sum().backward()
            torch.testing.assert_close(inputs[0].grad, inputs[1].grad)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))


def test_parameters_stay_the_same_objects_and_nothing_is_done_twice() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    weight, running = model[1].weight, model[1].running_mean
    assert synchronise_norms(model)
    assert model[1].weight is weight
    assert model[1].running_mean is running
    made = model[1]
    assert synchronise_norms(model)
    assert model[1] is made
    assert not synchronise_norms(nn.Sequential(nn.Linear(2, 2)))
