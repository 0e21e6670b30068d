"""What outlives a process: registered once, saved and loaded together."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drumline.distributed import SingleDevice
from drumline.training import Cursor
from drumline.training.state import OptimizerState, Progress, RandomStates, StateRegistry


class Part:
    def __init__(self, value: int) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def draws() -> tuple[Any, ...]:
    return (
        torch.rand(3).tolist(),
        torch.randn(3).tolist(),
        random.random(),
        random.gauss(0, 1),
        np.random.rand(2).tolist(),
        np.random.randn(1).tolist(),
    )


def through_a_file(state: dict[str, Any], path: Path) -> dict[str, Any]:
    """As a checkpoint does it: nothing in the file may be code."""
    torch.save(state, path)
    return torch.load(path, weights_only=True)  # type: ignore[no-any-return]


def test_parts_are_saved_by_name_and_unknown_ones_keep_their_own() -> None:
    one, two = Part(1), Part(2)
    registry = StateRegistry()
    registry.register("one", one)
    registry.register("two", two)
    assert registry.state_dict() == {"one": {"value": 1}, "two": {"value": 2}}
    registry.load_state_dict({"one": {"value": 7}, "of a later version": {}})
    assert (one.value, two.value) == (7, 2)


def test_a_name_is_registered_once() -> None:
    registry = StateRegistry()
    registry.register("one", Part(1))
    with pytest.raises(ValueError, match="'one' is registered already"):
        registry.register("one", Part(2))


def test_progress_makes_the_round_trip() -> None:
    progress = Progress(7, 80, 2, 1, Cursor(3, 4))
    other = Progress()
    other.load_state_dict(progress.state_dict())
    assert other == progress
    assert all(isinstance(value, int) for value in progress.state_dict().values())


def test_all_generators_go_on_where_they_were(tmp_path: Path) -> None:
    random.gauss(0, 1)  # so that a cached second value is part of the state
    np.random.randn(1)
    states = RandomStates(0, lambda own: [own])
    saved = through_a_file(states.state_dict(), tmp_path / "state.pt")
    expected = draws()
    draws()
    states.load_state_dict(saved)
    assert draws() == expected


def test_each_rank_gets_its_own_and_a_new_rank_keeps_what_it_has() -> None:
    torch.manual_seed(1)
    first = RandomStates(0, lambda own: [own]).state_dict()["ranks"][0]
    torch.manual_seed(2)
    second = RandomStates(0, lambda own: [own]).state_dict()["ranks"][0]
    expected = torch.rand(2)
    saved = {"ranks": [first, second]}
    RandomStates(1, lambda own: [own]).load_state_dict(saved)
    assert torch.equal(torch.rand(2), expected)
    torch.manual_seed(3)
    own = torch.get_rng_state()
    RandomStates(2, lambda own: [own]).load_state_dict(saved)
    assert torch.equal(torch.get_rng_state(), own)


def test_a_resumed_optimizer_keeps_its_moments_and_takes_the_present_options() -> None:
    model = torch.nn.ParameterDict({"weight": torch.ones(3)})
    weight, strategy = model["weight"], SingleDevice()
    strategy.wrap(model)
    before = torch.optim.AdamW([weight], lr=0.1, betas=(0.5, 0.6), weight_decay=0.3)
    weight.grad = torch.tensor([1.0, 2.0, 3.0])
    before.step()
    after = torch.optim.AdamW([weight], lr=0.2, betas=(0.9, 0.99), weight_decay=0.0)
    saved = OptimizerState(before, strategy).state_dict()
    assert list(saved["state"]) == ["weight"]
    OptimizerState(after, strategy).load_state_dict(saved)
    # Adam's first moment after one step is (1 - 0.5) times the gradient.
    assert after.state[weight]["exp_avg"].tolist() == pytest.approx([0.5, 1.0, 1.5])
    group = after.param_groups[0]
    assert (group["lr"], group["betas"], group["weight_decay"]) == (0.2, (0.9, 0.99), 0.0)
