"""torch.compile as a switch: a real compilation of a tiny model, with graph breaks reported."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator

import pytest
import torch
from counted_work import loader
from torch import Tensor, nn

from drumline.training.performance import Outcome, Rules, optimize
from drumline.training.performance.compiled import Compile
from drumline.training.performance.timing import Timing

QUICK = Rules(block_s=0.01)


class Breaking(nn.Module):
    """Dropout, and a decision by value in the middle, where a graph must end."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 16), nn.Linear(16, 1)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.dropout(self.first(x).tanh())
        if hidden.sum().item() > 1e6:  # the graph breaks here
            hidden = -hidden
        return self.second(hidden)


def line_of_the_break() -> int:
    lines, start = inspect.getsourcelines(Breaking.forward)
    return start + next(number for number, line in enumerate(lines) if "breaks here" in line)


@pytest.fixture(autouse=True)
def no_compiled_code_is_left() -> Iterator[None]:
    log = logging.getLogger("torch._dynamo.variables.tensor")
    level = log.level
    yield
    log.setLevel(level)
    torch._dynamo.reset()


@pytest.fixture
def always_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What changes no result is kept, whatever the clock says."""
    monkeypatch.setattr(Timing, "is_worth", lambda timing, minimum: True)


def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return (model(batch[0]) - batch[1]).square().squeeze(1)


@pytest.mark.usefixtures("always_worth_it")
def test_a_model_is_compiled_in_place_with_the_same_results_and_breaks_are_named() -> None:
    torch.manual_seed(0)
    model = Breaking()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    names = list(model.state_dict())
    switch = Compile()
    report = optimize(model, loader(), optimizer, loss, switches=[switch], rules=QUICK)
    row = report.row("compile")
    assert row.outcome is Outcome.APPLIED, row.reason
    assert row.deviation is not None
    assert row.deviation < 1e-4  # although half of the values are dropped: the masks are the same
    assert row.details["graphs"] >= 2
    (broken,) = row.details["graph_breaks"]
    assert "Tensor.item()" in broken["reason"]
    assert broken["where"] == f"test_compiled.py:{line_of_the_break()}"
    assert list(model.state_dict()) == names
    again = optimize(model, loader(), optimizer, loss, switches=[Compile()], rules=QUICK)
    assert again.row("compile").reason == "the model is compiled already"
    switch.undo(type("Subject", (), {"model": model})())
    assert model._compiled_call_impl is None


@pytest.mark.parametrize("model", [nn.Linear(3, 1), Breaking()], ids=["library", "own"])
def test_a_compiler_that_fails_is_reported(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import compile_fx

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no working C++ compiler")

    monkeypatch.setattr(compile_fx, "compile_fx", broken)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    report = optimize(model, loader(), optimizer, loss, switches=[Compile()], rules=QUICK)
    row = report.row("compile")
    assert row.outcome is Outcome.UNDONE
    assert row.reason.startswith("it failed: ")
    assert "no working C++ compiler" in row.reason
    assert model._compiled_call_impl is None
    assert report.applied == []


class Recurrent(nn.Module):
    """Torch does not compile an LSTM, nor what holds one."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(3, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0])


def test_a_model_that_torch_passes_over_is_not_called_compiled() -> None:
    model = Recurrent()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    report = optimize(model, loader(), optimizer, loss, switches=[Compile()], rules=QUICK)
    row = report.row("compile")
    assert row.outcome is Outcome.NOT_APPLICABLE
    assert row.reason.startswith("torch compiles nothing of this model: ")
    assert "LSTM" in row.reason
    assert model._compiled_call_impl is None
