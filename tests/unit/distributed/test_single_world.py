"""The world of one process: the same interface, nobody to wait for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from drumline.config import ClusterEnvironment, DistributedConfig, Mode, RunConfig
from drumline.distributed import (
    DataParallelReplicas,
    LocalControl,
    SingleDevice,
    StoreControl,
    World,
    build_strategy,
    open_world,
)
from drumline.errors import DeviceError

ALONE = ClusterEnvironment("alone", 0, 1, 0, 1, "127.0.0.1", 0)
REPLICATED = DistributedConfig(mode=Mode.DISTRIBUTED, backend="gloo")


def test_alone_there_is_no_process_group() -> None:
    with open_world(DistributedConfig(), ALONE) as world:
        assert (world.rank, world.size, world.is_main, world.has_data_plane) == (0, 1, True, False)
        assert not dist.is_initialized()
        tensor = torch.tensor([2.0])
        for op in ("sum", "max", "min"):
            assert world.all_reduce(tensor, op) is tensor
        assert tensor.item() == 2.0
        world.barrier()
        world.synchronize()
        assert isinstance(world.strategy(), SingleDevice)


def test_one_process_in_a_group_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a collective of one rank")

    with open_world(REPLICATED, ALONE) as world:
        assert world.has_data_plane
        monkeypatch.setattr(dist, "all_reduce", refuse)
        tensor = torch.tensor([2.0])
        assert world.all_reduce(tensor) is tensor and tensor.item() == 2.0


@pytest.mark.parametrize("config", [None, DistributedConfig(), RunConfig(steps=1, devices="cpu")])
def test_a_world_opens_from_a_config_a_part_of_one_or_none(
    config: RunConfig | DistributedConfig | None,
) -> None:
    with open_world(config, ALONE) as world:
        assert world.config == DistributedConfig()


def test_one_process_decides_alone() -> None:
    control = LocalControl()
    assert control.vote(stop=1, memory=0) == {"stop": 1, "memory": 0}
    assert control.any(True) is True
    assert control.any(False) is False
    assert control.broadcast({"a": 1}) == {"a": 1}
    assert control.gather("x") == ["x"]
    control.barrier("nobody")


def test_mode_distributed_by_name_makes_a_group_of_one() -> None:
    with open_world(REPLICATED, ALONE) as world:
        assert (world.size, world.backend) == (1, "gloo")
        assert isinstance(world.control, StoreControl)
        assert world.control.vote(a=3, b=-1) == {"a": 3, "b": -1}
        ballot = world.control.call(later=5)
        assert world.control.gather([1]) == [[1]]  # other calls may come before the count
        assert ballot.result() == {"later": 5}
        assert world.control.broadcast("x") == "x"
        world.barrier()
        assert world.all_reduce(torch.tensor([4]), "max").item() == 4
        assert isinstance(world.strategy(), DataParallelReplicas)
    assert not dist.is_initialized()


def test_the_group_is_closed_when_the_work_fails() -> None:
    with pytest.raises(KeyError), open_world(REPLICATED, ALONE):
        raise KeyError("in the work")
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("mode", "size", "backend", "kind"),
    [
        (Mode.AUTO, 1, "none", SingleDevice),
        (Mode.AUTO, 1, "gloo", SingleDevice),
        (Mode.AUTO, 2, "gloo", DataParallelReplicas),
        (Mode.DISTRIBUTED, 1, "gloo", DataParallelReplicas),
        (Mode.NONE, 1, "none", SingleDevice),
    ],
)
def test_the_strategy_follows_mode_and_size(
    mode: Mode, size: int, backend: str, kind: type
) -> None:
    config = DistributedConfig(mode=mode)
    world = World(0, size, 0, torch.device("cpu"), backend, LocalControl(), config, ALONE)
    assert type(build_strategy(config, world)) is kind


def gradients_of(world: World, micro_batches: int) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    data = torch.randn(6, 3, dtype=torch.float64)
    strategy = world.strategy()
    wrapped = strategy.wrap(model)
    parts = data.chunk(micro_batches)
    with strategy.accumulate():
        for part in parts:
            (wrapped(part) ** 2).sum().backward()
    strategy.reduce_gradients()
    norm = strategy.gradient_norm()
    strategy.clip(0.5, norm)
    strategy.teardown()
    return model, norm


@pytest.mark.parametrize("config", [DistributedConfig(), REPLICATED])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_both_strategies_sum_and_clip_as_torch_does(
    config: DistributedConfig, micro_batches: int
) -> None:
    with open_world(config, ALONE) as world:
        model, norm = gradients_of(world, micro_batches)
    torch.manual_seed(0)
    reference = nn.Linear(3, 2).double()
    (reference(torch.randn(6, 3, dtype=torch.float64)) ** 2).sum().backward()
    expected = nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
    torch.testing.assert_close(norm, expected)
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_frozen_parameters_have_no_part_in_the_norm() -> None:
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    strategy = SingleDevice()
    strategy.wrap(model)
    assert strategy.gradient_norm().item() == 0.0
    model(torch.ones(1, 2)).sum().backward()
    assert strategy.gradient_norm().item() == pytest.approx(2.0)  # four ones
    assert [p is model.weight for p in strategy.parameters()] == [True]


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_planned_gpus_that_torch_does_not_see_are_an_error() -> None:
    for kind in ("cuda", "rocm"):
        planned = replace(ALONE, devices=kind)
        with pytest.raises(DeviceError, match="torch sees none"), open_world(None, planned):
            pass


def test_devices_cpu_stays_on_the_cpu() -> None:
    with open_world(RunConfig(steps=1, devices="cpu:2"), ALONE) as world:
        assert world.device == torch.device("cpu")
