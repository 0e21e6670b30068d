"""A snapshot puts back every bit that steps change."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from drumline.training.performance.snapshot import Snapshot
from drumline.training.state import random_state


class Counting(nn.Module):
    """Has a buffer that is not saved, extra state, and a frozen weight."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.norm.weight.requires_grad_(False)
        self.register_buffer("seen", torch.zeros(1), persistent=False)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen += len(x)
        return self.norm(self.layer(x))

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": self.calls}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.calls = state["calls"]


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    random.random()
    np.random.random()
    model(torch.randn(8, 4)).square().sum().backward()
    optimizer.step()


def everything(model: Counting, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    tensors = {name: t.detach().clone() for name, t in model.named_parameters()}
    tensors |= {name: t.clone() for name, t in model.named_buffers()}
    state = optimizer.state_dict()
    moments = {
        f"{number}.{key}": torch.as_tensor(value).clone()
        for number, values in state["state"].items()
        for key, value in values.items()
    }
    rates = [group["lr"] for group in state["param_groups"]]
    return {"tensors": tensors, "moments": moments, "rates": rates, "calls": model.calls,
            "training": [m.training for m in model.modules()],
            "random": random_state()}  # fmt: skip


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert_same(value, other[key])
    elif isinstance(one, Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other


@pytest.mark.parametrize("steps_before", [0, 3])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.Rprop, torch.optim.ASGD])
def test_all_that_steps_change_is_put_back(kind: Any, steps_before: int) -> None:
    torch.manual_seed(1)
    model = Counting()
    optimizer = kind([p for p in model.parameters() if p.requires_grad], lr=0.01)
    for _ in range(steps_before):
        step(model, optimizer)
    model.norm.eval()
    before = everything(model, optimizer)
    snapshot = Snapshot(model, optimizer)
    model.train()
    optimizer.param_groups[0]["lr"] = 5.0
    for _ in range(2):
        step(model, optimizer)
    snapshot.restore()
    assert_same(before, everything(model, optimizer))


def test_gradients_that_were_there_come_back_untouched() -> None:
    model = Counting()
    optimizer = torch.optim.SGD(model.layer.parameters(), lr=0.1)  # norm.bias has none
    model(torch.randn(8, 4)).square().sum().backward()
    before = {name: p.grad for name, p in model.named_parameters()}
    copies = {name: None if g is None else g.clone() for name, g in before.items()}
    snapshot = Snapshot(model, optimizer)
    assert all(p.grad is None for p in model.parameters())
    step(model, optimizer)
    snapshot.give_back()
    for name, parameter in model.named_parameters():
        assert parameter.grad is before[name]
        if parameter.grad is not None:
            assert torch.equal(parameter.grad, copies[name])  # type: ignore[arg-type]
