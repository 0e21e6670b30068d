"""A task from a model, a data set and a loss: what a script of a user's own gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from single_process import world
from torch import Tensor, nn

from drumline.config import RunConfig
from drumline.errors import BadInput
from drumline.events import EventLog
from drumline.training import Cursor, Setup, ShareOfStep
from drumline.training.own_model import OwnModelTask

DATA = [(torch.tensor([float(n)]), torch.tensor([2.0 * n])) for n in range(5)]


def squared(model: nn.Module, batch: Any) -> Tensor:
    inputs, targets = batch
    return ((model(inputs) - targets) ** 2).sum(1)


def task_of(folder: Path, loss: Any = squared, data: Any = DATA, **options: Any) -> OwnModelTask:
    task = OwnModelTask(options.pop("model", nn.Linear(1, 1)), data, loss, **options)
    config = RunConfig(steps=1, seed=4, epoch_end="wrap")
    task.setup(Setup(config, world(), EventLog(folder / "events.jsonl")))
    return task


def test_the_loss_is_the_sum_over_samples(tmp_path: Path) -> None:
    model = nn.Linear(1, 1)
    nn.init.constant_(model.weight, 1.0)
    nn.init.constant_(model.bias, 0.0)
    batch = (torch.tensor([[1.0], [3.0]]), torch.tensor([[2.0], [6.0]]))
    losses = task_of(tmp_path).loss(model, batch)
    assert losses.loss_sum.item() == 1.0 + 9.0
    losses.loss_sum.backward()
    assert model.weight.grad is not None
    assert model.weight.grad.item() == 2 * (-1) * 1 + 2 * (-3) * 3


@pytest.mark.parametrize(
    ("loss", "given"),
    [
        (lambda m, b: squared(m, b).mean(), r"\(\)"),
        (lambda m, b: squared(m, b)[:, None], r"\(2, 1\)"),
        (lambda m, b: 3.0, "float"),
        (lambda m, b: None, "NoneType"),
    ],
)
def test_a_loss_that_is_not_one_value_a_sample_is_refused(
    tmp_path: Path, loss: Any, given: str
) -> None:
    batch = (torch.ones(2, 1), torch.ones(2, 1))
    with pytest.raises(BadInput, match=f"gave {given}") as raised:
        task_of(tmp_path, loss).loss(nn.Linear(1, 1), batch)
    assert 'reduction="none"' in raised.value.remedy


def test_a_model_given_ready_is_used_and_a_function_is_called(tmp_path: Path) -> None:
    ready = nn.Linear(1, 1)
    assert task_of(tmp_path, model=ready).build_model() is ready
    assert isinstance(task_of(tmp_path, model=lambda: nn.Linear(1, 3)).build_model(), nn.Linear)


def test_the_data_come_in_the_order_of_the_config(tmp_path: Path) -> None:
    source = task_of(tmp_path).build_source()
    batches = source.open(ShareOfStep(0, (1,), 4), Cursor())
    seen = [next(batches) for _ in range(5)]
    assert [batch.global_count for batch in seen] == [4] * 5  # wrap, as the config says
    samples = torch.cat([batch.data[0] for batch in seen]).flatten().tolist()
    epochs = [samples[start : start + 5] for start in range(0, 20, 5)]
    assert all(sorted(epoch) == [0, 1, 2, 3, 4] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


def test_an_empty_data_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="data set is empty"):
        task_of(tmp_path, data=[]).build_source()


def test_evaluation_is_the_users_and_optional(tmp_path: Path) -> None:
    model = nn.Linear(1, 1)
    assert task_of(tmp_path).evaluate(model) == {}

    def evaluate(given: nn.Module) -> dict[str, float]:
        assert given is model
        assert not torch.is_grad_enabled()
        return {"accuracy": 0.75}

    assert task_of(tmp_path, evaluate=evaluate).evaluate(model) == {"accuracy": 0.75}


def test_without_a_task_config_samples_stand_alone(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    assert task.granularity == 1
    assert task.derive_metrics({"a": 1.0}) == {"a": 1.0}
    assert task.state_dict() == {}
