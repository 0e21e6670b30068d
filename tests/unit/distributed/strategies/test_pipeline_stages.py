"""A model cut into stages: who keeps what, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from drumline.distributed import cut_stages
from drumline.distributed.strategies.pipeline.stages import Part, check_stages
from drumline.errors import BadInput

CPU = torch.device("cpu")


class Model(nn.Module):
    """Two blocks, a parameter of its own in the second stage, one of none, a shared buffer."""

    shared: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        self.second = nn.Linear(3, 4)
        self.own = nn.Parameter(torch.ones(4))
        self.unused = nn.Parameter(torch.ones(1))
        self.register_buffer("shared", torch.tensor([2.0]))

    def pipeline_stages(self, count: int) -> list[nn.Module]:
        return [Stage(self.first, self.shared), Stage(self.second, self.shared, self.own)][:count]


class Stage(nn.Module):
    def __init__(self, inner: nn.Module, shared: Tensor, own: nn.Parameter | None = None) -> None:
        super().__init__()
        self.inner, self.own = inner, own
        self.register_buffer("shared", shared)


@pytest.mark.parametrize(
    ("blocks", "count", "expected"),
    [(4, 2, [2, 2]), (5, 2, [3, 2]), (7, 4, [2, 2, 2, 1]), (3, 3, [1, 1, 1]), (3, 1, [3])],
)
def test_stages_have_as_equal_numbers_of_blocks_as_can_be(
    blocks: int, count: int, expected: list[int]
) -> None:
    made = [nn.Linear(1, 1) for _ in range(blocks)]
    stages = cut_stages(made, count)
    assert [len(list(stage)) for stage in stages] == expected
    assert [block for stage in stages for block in stage] == made  # in order, none left out


def test_a_stage_passes_several_tensors_on() -> None:
    class Both(nn.Module):
        def forward(self, one: Tensor, other: Tensor, scale: int = 1) -> tuple[Tensor, Tensor]:
            return one + other, one * scale

    (whole,) = cut_stages([Both(), Both(), Both()], 1)
    one, other = whole(torch.tensor(1), torch.tensor(2), scale=5)
    assert (one.item(), other.item()) == (11, 8)  # (1, 2), (3, 5), (8, 3), (11, 8)


def test_fewer_blocks_than_stages_are_refused() -> None:
    with pytest.raises(BadInput, match="2 blocks, which cannot make 3 pipeline stages"):
        cut_stages([nn.ReLU(), nn.ReLU()], 3)


def test_what_cannot_be_a_pipeline_is_named() -> None:
    model = Model()
    stages = model.pipeline_stages(2)
    check_stages(model, stages, 2)
    with pytest.raises(BadInput, match="in 3 stages, and this one has 2 pipeline stages"):
        check_stages(model, stages, 3)
    with pytest.raises(BadInput, match="this one has no pipeline_stages"):
        check_stages(model, None, 2)
    with pytest.raises(BadInput, match=r"inner\.weight of pipeline stage 1 is no parameter of the"):
        check_stages(model, [stages[0], Stage(nn.Linear(3, 4), model.shared)], 2)
    with pytest.raises(BadInput, match=r"own is in pipeline stages 0 and 1: weights that are tied"):
        check_stages(model, [Stage(model.first, model.shared, model.own), stages[1]], 2)


def test_a_rank_keeps_its_stages_and_the_model_all_its_names() -> None:
    torch.manual_seed(0)
    model = Model()
    before = dict(model.named_parameters())
    values = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    stages = model.pipeline_stages(2)
    part = Part(model, stages, [1])
    part.keep(CPU)
    assert model.state_dict().keys() == values.keys()
    here = {name for name, tensor in model.state_dict().items() if not tensor.is_meta}
    assert here == {"second.weight", "second.bias", "own", "shared"}
    assert model.second.weight is before["second.weight"]  # for whoever had it before
    assert stages[1].own is model.own is before["own"]
    assert part.stage_of["unused"] == 0
    assert part.stage_of["shared"] == 0  # the first that has it speaks for it


@pytest.mark.parametrize("mine", [0, 1])
def test_a_model_is_made_whole_for_a_while(mine: int) -> None:
    torch.manual_seed(0)
    model = Model()
    values = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    part = Part(model, model.pipeline_stages(2), [mine])
    part.keep(CPU)
    asked = []

    def bring(stage: int, tensor: Tensor) -> None:
        name = names.pop(0)
        asked.append((name, stage))
        tensor.copy_(values[name])

    names = [n for n, _ in (*model.named_parameters(), *model.named_buffers())]
    expected = {**dict.fromkeys(names, 0), "second.weight": 1, "second.bias": 1, "own": 1}
    with torch.no_grad(), part.whole(CPU, bring):
        assert dict(asked) == expected
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, values[name])
    away = {name for name, tensor in model.state_dict().items() if tensor.is_meta}
    assert away == {n for n, stage in expected.items() if stage != mine} - {"shared"}
