"""Which modules are sharded together."""

from __future__ import annotations

import pytest
from torch import nn

from drumline.distributed.strategies.units import find_units
from drumline.errors import BadInput


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleList(Block() for _ in range(3))
        self.decoder = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        self.mixed = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        self.lone = nn.ModuleList([nn.Linear(2, 2)])
        self.plain = nn.Sequential(nn.ReLU(), nn.ReLU())


def test_units_are_the_entries_of_lists_of_equal_blocks_outermost_first() -> None:
    model = Model()
    assert find_units(model) == [*model.encoder, *model.decoder]


def test_a_block_that_shares_a_parameter_is_no_unit() -> None:
    model = Model()
    model.mixed[0].weight = model.encoder[1].inner[0].weight
    found = find_units(model)
    assert model.encoder[1] not in found
    assert {model.encoder[0], model.encoder[2]} < set(found)


def test_what_a_task_names_is_taken_in_its_order() -> None:
    model = Model()
    assert find_units(model, [model.mixed, model.lone]) == [model.mixed, model.lone]
    assert find_units(model, []) == []


def test_a_named_unit_must_be_in_the_model_and_apart() -> None:
    model = Model()
    with pytest.raises(BadInput, match="Linear that the task names is not in the model"):
        find_units(model, [nn.Linear(1, 1)])
    model.lone[0].weight = model.mixed[0].weight
    with pytest.raises(BadInput, match="mixed that the task names shares parameters"):
        find_units(model, [model.mixed])
