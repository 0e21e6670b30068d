"""What torch does on GPUs only and a mode must undo, done on the CPU in the same way."""

from __future__ import annotations

from collections import OrderedDict
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from drumline.distributed.strategies.data_parallel import _Replicas
from drumline.distributed.strategies.sharded import keep_unflattened


def flattened(layer: nn.RNNBase) -> None:
    """As for cuDNN: weights go to memory of their own."""
    for weight in layer._flat_weights:
        if isinstance(weight, Tensor):
            weight.data = weight.data.clone()


def losses(layer: nn.Module) -> list[float]:
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    inputs = torch.linspace(-1, 1, 30, dtype=torch.float64).view(5, 2, 3)
    found = []
    for _ in range(4):
        loss = layer(inputs)[0].square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


@pytest.mark.usefixtures("alone_in_a_group")
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_sharded_recurrent_layer_computes_with_the_weights_it_learns(
    kind: type[nn.RNNBase], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = kind(3, 4, num_layers=2).double()  # type: ignore[call-arg]
    kept, moved = deepcopy(whole), deepcopy(whole)
    expected = losses(whole)
    monkeypatch.setattr(nn.RNNBase, "flatten_parameters", flattened)
    mesh = init_device_mesh("cpu", (1,))
    keep_unflattened(kept)
    for layer in (kept, moved):
        fully_shard(layer, mesh=mesh)
    assert losses(kept) == pytest.approx(expected, rel=1e-12)
    assert losses(moved)[-1] != pytest.approx(expected[-1], rel=1e-3)  # torch, left to itself


class Broadcast(torch.autograd.Function):
    """As torch's: what no loss depends on gets a gradient of zeros."""

    @staticmethod
    def forward(ctx: Any, *parameters: Tensor) -> tuple[Tensor, ...]:
        del ctx
        return tuple(parameter.clone() for parameter in parameters)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        del ctx
        return gradients


def replicate(_: Any, module: nn.Module, device_ids: list[int]) -> list[nn.Module]:
    """Copies of a module without children, on the CPU."""
    replicas = []
    for _ in device_ids:
        replica = module._replicate_for_data_parallel()  # type: ignore[operator]
        copies = Broadcast.apply(*module._parameters.values())  # type: ignore[no-untyped-call]
        replica._former_parameters = OrderedDict(zip(module._parameters, copies, strict=True))
        for name, copy in replica._former_parameters.items():
            setattr(replica, name, copy)
        replicas.append(replica)
    return replicas


class Choosing(nn.Module):
    """Uses one of its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.ones(2)) for _ in range(2))

    def forward(self, inputs: Tensor, name: str) -> Tensor:
        used: Tensor = getattr(self, name)
        return inputs * used


def test_parameters_that_no_replica_used_keep_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.DataParallel, "replicate", replicate)
    model = Choosing()
    replicas = _Replicas(model, [])  # torch's own forward needs GPUs
    for name, other in (("first", "second"), ("second", "first")):
        for replica in replicas.replicate(model, [0, 1]):
            replica(torch.ones(2), name).sum().backward()
        assert getattr(model, other).grad.tolist() == [0.0, 0.0]  # torch, left to itself
        replicas.drop_unused()
        assert getattr(model, name).grad.tolist() == [2.0, 2.0]
        assert getattr(model, other).grad is None
        model.zero_grad()
