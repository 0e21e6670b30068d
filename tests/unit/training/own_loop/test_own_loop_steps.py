"""Backward, step and means of one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import drumline
from drumline.config import ClusterEnvironment
from drumline.distributed import SingleDevice
from drumline.errors import BadInput, CheckpointError

ALONE = ClusterEnvironment("alone", 0, 1, 0, 1, "127.0.0.1", 0)


@pytest.fixture
def world() -> Iterator[drumline.OwnLoop]:
    with drumline.open_world(drumline.RunConfig(epochs=1, seed=5, devices="cpu"), ALONE) as opened:
        yield opened


def linear(start: float = 1.0) -> nn.Linear:
    model = nn.Linear(2, 1, bias=False).double()
    nn.init.constant_(model.weight, start)
    return model


def sgd(model: nn.Module, lr: float = 1.0) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr)


X = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)


def test_an_open_world_is_a_world(world: drumline.OwnLoop) -> None:
    assert isinstance(world, drumline.World)
    assert (world.rank, world.size, world.seed) == (0, 1, 5)
    world.synchronize()
    assert world.device_stats()[0].device == "cpu"


@pytest.mark.parametrize(("vector", "count"), [(True, None), (False, 2), (False, torch.tensor(2))])
def test_the_gradient_is_that_of_the_mean(
    world: drumline.OwnLoop, vector: bool, count: Any
) -> None:
    model = world.prepare(linear())
    each = model(X).squeeze(1)
    world.backward(each if vector else each.sum(), count)
    assert model.weight.grad.tolist() == [[2.0, 3.0]]  # means of the columns


def test_a_step_clips_drops_gradients_and_says_that_it_was_taken(world: drumline.OwnLoop) -> None:
    model = linear()
    wrapped, optimizer = world.prepare(model, sgd(model))
    world.backward(5 * wrapped(X).squeeze(1), count=1)  # gradient (20, 30), too much by 100
    assert world.step(optimizer, clip_norm=0.5) is True
    direction = torch.tensor([[2.0, 3.0]], dtype=torch.float64)
    expected = 1 - 0.5 * direction / direction.norm()
    torch.testing.assert_close(model.weight.detach(), expected, rtol=0, atol=1e-6)
    assert model.weight.grad is None


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_a_step_that_is_not_finite_is_skipped(world: drumline.OwnLoop, bad: float) -> None:
    model = linear()
    wrapped, optimizer = world.prepare(model, sgd(model))
    world.backward(wrapped(X).sum() * bad, count=2)
    assert world.step(optimizer) is False
    assert model.weight.tolist() == [[1.0, 1.0]]
    assert model.weight.grad is None


def test_two_backwards_without_accumulate_are_refused(world: drumline.OwnLoop) -> None:
    model = linear()
    wrapped, _ = world.prepare(model, sgd(model))
    world.backward(wrapped(X).squeeze(1))
    with pytest.raises(BadInput, match="already summed"):
        world.backward(wrapped(X).squeeze(1))


def test_a_step_without_its_last_micro_batch_is_refused(world: drumline.OwnLoop) -> None:
    model = linear()
    wrapped, optimizer = world.prepare(model, sgd(model))
    with world.accumulate():
        world.backward(wrapped(X).squeeze(1))
    with pytest.raises(BadInput, match="not summed"):
        world.step(optimizer)


def test_an_optimizer_that_was_not_prepared_is_refused(world: drumline.OwnLoop) -> None:
    model = linear()
    world.prepare(model)
    with pytest.raises(BadInput, match="SGD was not prepared"):
        world.step(sgd(model))


def test_a_sum_without_a_count_is_refused(world: drumline.OwnLoop) -> None:
    model = world.prepare(linear())
    with pytest.raises(BadInput, match="count="):
        world.backward(model(X).sum())


def test_models_with_an_optimizer_each_take_turns(world: drumline.OwnLoop) -> None:
    first, second = linear(), linear(2.0)
    a, b, of_a, of_b = world.prepare(first, second, sgd(first), sgd(second))
    world.backward(a(X).squeeze(1))
    world.step(of_a)
    world.backward(b(X).squeeze(1))
    world.step(of_b)
    assert first.weight.tolist() == [[-1.0, -2.0]]
    assert second.weight.tolist() == [[0.0, -1.0]]


def test_parameters_that_no_optimizer_has_keep_no_gradient(world: drumline.OwnLoop) -> None:
    model = nn.Sequential(linear(), nn.Linear(1, 1).double())
    wrapped, optimizer = world.prepare(model, sgd(model[1], 0.1))
    for _ in range(2):  # what was left over would be refused
        world.backward(wrapped(X).squeeze(1))
        assert model[0].weight.grad is None
        assert world.step(optimizer, clip_norm=1.0)
    assert model[0].weight.tolist() == [[1.0, 1.0]]


class Exchanging(SingleDevice):
    """A strategy that puts parameters of its own into the model, as sharding does."""

    def wrap(self, model: nn.Module) -> nn.Module:
        for module in model.modules():
            for name, parameter in list(module._parameters.items()):
                if parameter is not None:
                    setattr(module, name, nn.Parameter(parameter.detach().clone()))
        return super().wrap(model)


def test_an_optimizer_follows_parameters_that_a_strategy_exchanges(
    world: drumline.OwnLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drumline.OwnLoop, "strategy", lambda _: Exchanging())
    model = linear()
    optimizer, wrapped = world.prepare(sgd(model), model)
    world.backward(wrapped(X).squeeze(1))
    world.step(optimizer)
    assert model.weight.tolist() == [[-1.0, -2.0]]


def test_means_take_the_count_of_the_batch_in_hand(world: drumline.OwnLoop) -> None:
    loader = world.prepare(DataLoader(TensorDataset(torch.arange(5.0)), 3))
    means = [world.reduce({"mean": batch.mean(), "one": 1}) for (batch,) in loader]
    assert means == [{"mean": 1.0, "one": 1.0}, {"mean": 3.5, "one": 1.0}]
    assert world.reduce({"mean": 2.0}, count=7) == {"mean": 2.0}
    with pytest.raises(BadInput):
        world.reduce({"mean": 2.0})


def test_a_checkpoint_is_whole_or_refused(world: drumline.OwnLoop, tmp_path: Path) -> None:
    model = linear()
    optimizer = torch.optim.Adam(model.parameters())
    world.prepare(model, optimizer)
    path = tmp_path / "saved"
    with pytest.raises(CheckpointError, match="never committed"):
        world.load(path)
    world.save(path, best=0.25)
    nn.init.constant_(model.weight, 7.0)
    world.save(path, best=0.5)  # the one that is there is exchanged
    nn.init.constant_(model.weight, 3.0)
    assert world.load(path) == {"best": 0.5}
    assert model.weight.tolist() == [[7.0, 7.0]]
    assert [entry.name for entry in tmp_path.iterdir()] == ["saved"]
    with pytest.raises(CheckpointError, match="no part named schedule"):
        world.load(path, schedule=object())
    (path / "model.safetensors").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="truncated"):
        world.load(path)


def test_a_kill_before_the_renaming_loses_nothing(world: drumline.OwnLoop, tmp_path: Path) -> None:
    model = linear()
    world.prepare(model)
    world.save(tmp_path / "saved", number=3)
    (tmp_path / "saved").rename(tmp_path / "saved.partial")
    assert world.load(tmp_path / "saved") == {"number": 3}


def test_a_checkpoint_of_another_loop_does_not_fit(world: drumline.OwnLoop, tmp_path: Path) -> None:
    world.prepare(linear())
    world.save(tmp_path / "saved")
    with drumline.open_world(environment=ALONE) as other:
        other.prepare(nn.Linear(3, 1))
        with pytest.raises(CheckpointError, match="does not fit the model"):
            other.load(tmp_path / "saved")
    with drumline.open_world(environment=ALONE) as other:
        model = linear()
        other.prepare(model, sgd(model))
        with pytest.raises(CheckpointError, match="0 optimizers, and 1 were prepared"):
            other.load(tmp_path / "saved")
