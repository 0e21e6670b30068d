"""Optimizer state by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from drumline.distributed.strategies.optimizer_state import load_state, state_by_name
from drumline.distributed.strategies.replicated import finish_loading
from drumline.errors import CheckpointError


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    model[0].bias.requires_grad_(False)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.5)
    model[1](torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_state_is_keyed_by_name_and_unused_parameters_have_none() -> None:
    model, optimizer = trained()
    state = state_by_name(optimizer, model)
    assert state["param_groups"][0]["params"] == ["0.weight", "1.weight", "1.bias"]
    assert set(state["state"]) == {"1.weight", "1.bias"}
    # Adam's first moment after one step is (1 - 0.9) times the gradient, which is one.
    assert state["state"]["1.weight"]["exp_avg"].tolist() == [pytest.approx([0.1] * 3)]


def test_loading_goes_by_name_and_copies() -> None:
    model, optimizer = trained()
    state = state_by_name(optimizer, model)
    other = torch.optim.Adam([model[1].bias, model[1].weight, model[0].weight], lr=0.5)
    load_state(other, model, state)
    assert model[0].weight not in other.state
    theirs = other.state[model[1].weight]["exp_avg"]
    assert theirs.tolist() == [pytest.approx([0.1] * 3)]
    assert theirs.data_ptr() != optimizer.state[model[1].weight]["exp_avg"].data_ptr()


def test_moments_take_the_layout_of_their_parameter() -> None:
    """Torch's fused Adam on the CPU goes by position in memory, without looking at strides."""
    weights = torch.randn(4, 3, 5, 5, dtype=torch.float64)
    ends = []
    for saved_layout in (torch.contiguous_format, torch.channels_last):
        model = nn.Module()
        model.weight = nn.Parameter(weights.clone(memory_format=torch.contiguous_format))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=True)
        draw = torch.Generator().manual_seed(1)
        for number in range(4):
            if number == 2:
                state = state_by_name(optimizer, model)
                entries = state["state"]["weight"]
                for key in ("exp_avg", "exp_avg_sq"):
                    entries[key] = entries[key].contiguous(memory_format=saved_layout)
                load_state(optimizer, model, state)
            model.weight.grad = torch.randn(weights.shape, generator=draw, dtype=torch.float64)
            optimizer.step()
        ends.append(model.weight.detach())
    assert torch.equal(*ends)


def test_a_state_of_other_parameters_is_refused() -> None:
    model, optimizer = trained()
    state = state_by_name(optimizer, model)
    other = torch.optim.Adam([model[1].weight])
    with pytest.raises(CheckpointError, match=r"other parameters: 0\.weight, 1\.bias"):
        load_state(other, model, state)


@pytest.mark.usefixtures("alone_in_a_group")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("fused", [False, True])
def test_a_state_that_ranks_share_out_is_held_once_and_where_its_update_reads_it(
    device: str, fused: bool
) -> None:
    options: dict[str, Any] = {"lr": 0.5, "fused": fused, "foreach": False}
    models = [nn.Linear(3, 2).to(device) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [
        ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, **options)
        for model in models
    ]
    one, other = optimizers

    def step(number: int) -> None:
        models[number](torch.ones(1, 3, device=device)).sum().backward()
        optimizers[number].step()
        optimizers[number].zero_grad()

    step(0)
    one.consolidate_state_dict(to=0)
    load_state(other, models[1], state_by_name(one, models[0]))
    finish_loading(other)
    models[1].load_state_dict(models[0].state_dict())
    assert not other.state
    held = other.optim.state[models[1].weight]["step"].device.type
    assert held == one.optim.state[models[0].weight]["step"].device.type
    step(0)
    step(1)
    assert torch.equal(models[0].weight, models[1].weight)
