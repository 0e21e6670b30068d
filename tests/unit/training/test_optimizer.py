"""Optimizers from a config, and the learning rate of every step."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from drumline.config import OptimizerConfig, ScheduleConfig
from drumline.training.optimizer import build_optimizer, learning_rate_factor, set_learning_rate


def factors(steps: int, **keys: Any) -> list[float]:
    config = ScheduleConfig(**keys)
    return [learning_rate_factor(config, step, steps) for step in range(steps)]


@pytest.mark.parametrize(
    ("steps", "keys", "expected"),
    [
        (4, {}, [1, 1, 1, 1]),
        (6, {"warmup_steps": 3}, [1 / 4, 2 / 4, 3 / 4, 1, 1, 1]),
        (4, {"name": "linear"}, [1, 3 / 4, 2 / 4, 1 / 4]),
        (4, {"name": "linear", "final_fraction": 0.2}, [1, 0.8, 0.6, 0.4]),
        (6, {"name": "linear", "warmup_steps": 2}, [1 / 3, 2 / 3, 1, 3 / 4, 2 / 4, 1 / 4]),
        (6, {"name": "linear", "decay_steps": 2}, [1, 1, 1, 1, 1, 1 / 2]),
        (3, {"name": "linear", "decay_steps": 0}, [1, 1, 1]),
        (3, {"name": "linear", "warmup_steps": 3}, [1 / 4, 2 / 4, 3 / 4]),
        (
            4,
            {"name": "cosine"},
            [1, 0.5 + math.sqrt(0.5) / 2, 0.5, 0.5 - math.sqrt(0.5) / 2],
        ),
        (2, {"name": "cosine", "final_fraction": 0.5}, [1, 0.75]),
        (5, {"name": "cosine", "decay_steps": 3}, [1, 1, 1, 0.75, 0.25]),
    ],
)
def test_factors_by_hand(steps: int, keys: dict[str, Any], expected: list[float]) -> None:
    assert factors(steps, **keys) == pytest.approx(expected, abs=1e-15)


def test_linear_and_cosine_are_those_of_torch() -> None:
    weight = nn.Parameter(torch.zeros(1))
    steps, floor = 50, 0.1
    for name, peer in [
        (
            "linear",
            lambda o: torch.optim.lr_scheduler.LinearLR(o, 1.0, floor, total_iters=steps),
        ),
        ("cosine", lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, steps, eta_min=floor)),
    ]:
        optimizer = torch.optim.SGD([weight], lr=1.0)
        schedule = peer(optimizer)
        theirs = []
        for _ in range(steps):
            theirs.append(schedule.get_last_lr()[0])
            optimizer.step()
            schedule.step()
        assert factors(steps, name=name, final_fraction=floor) == pytest.approx(theirs, abs=1e-12)


@given(
    steps=st.integers(1, 300),
    warmup=st.integers(0, 300),
    decay=st.none() | st.integers(0, 400),
    name=st.sampled_from(["constant", "linear", "cosine"]),
    final=st.floats(0, 1),
)
def test_it_rises_in_the_warm_up_and_never_after(
    steps: int, warmup: int, decay: int | None, name: str, final: float
) -> None:
    values = factors(steps, name=name, warmup_steps=warmup, decay_steps=decay, final_fraction=final)
    rise, rest = values[:warmup], values[warmup:]
    assert rise == sorted(rise)
    assert rest == sorted(rest, reverse=True)
    assert all(0 < value < 1 for value in rise)
    assert all(final - 1e-12 <= value <= 1 for value in rest)


def test_past_the_last_step_the_final_fraction_stays() -> None:
    config = ScheduleConfig(name="cosine", final_fraction=0.25)
    assert learning_rate_factor(config, 10, 10) == pytest.approx(0.25)
    assert learning_rate_factor(config, 99, 10) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        ({"name": "adam"}, torch.optim.Adam),
        ({"name": "adamw", "weight_decay": 0.1}, torch.optim.AdamW),
        ({"name": "sgd", "momentum": 0.9}, torch.optim.SGD),
    ],
)
@pytest.mark.parametrize("implementation", ["auto", "fused", "foreach", "plain"])
def test_steps_are_those_of_torchs_own_class(
    keys: dict[str, Any], kind: type[torch.optim.Optimizer], implementation: str
) -> None:
    config = OptimizerConfig(lr=0.1, implementation=implementation, **keys)
    ours, theirs = nn.Linear(3, 2).double(), nn.Linear(3, 2).double()
    theirs.load_state_dict(ours.state_dict())
    options: dict[str, Any] = {"lr": 0.1, "weight_decay": config.weight_decay}
    if config.name == "sgd":
        options["momentum"] = 0.9
    else:
        options |= {"betas": (0.9, 0.999), "eps": 1e-8}
    peer = kind(theirs.parameters(), **options, foreach=False, fused=False)  # type: ignore[call-arg]
    optimizer = build_optimizer(config, ours)
    assert type(optimizer) is kind
    assert optimizer.defaults["fused"] is (implementation in ("auto", "fused"))
    inputs = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        for model, stepper in ((ours, optimizer), (theirs, peer)):
            stepper.zero_grad()
            (model(inputs) ** 2).sum().backward()
            stepper.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


def test_frozen_parameters_are_left_out() -> None:
    model = nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    optimizer = build_optimizer(OptimizerConfig(), model)
    assert [len(group["params"]) for group in optimizer.param_groups] == [1]


def test_the_learning_rate_is_set_in_every_group() -> None:
    a, b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([{"params": [a]}, {"params": [b], "lr": 0.5}], lr=0.1)
    set_learning_rate(optimizer, 0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]
