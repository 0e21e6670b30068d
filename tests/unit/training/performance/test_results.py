"""How far results are off: relative, tensor by tensor, and named."""

import math

import pytest
import torch
from torch import Tensor, nn

from drumline.training.performance.results import Results, deviation, gradients_of


def results(losses: list[float], **gradients: Tensor) -> Results:
    return Results(losses, gradients, {"w": torch.ones(2)})


def test_equal_results_deviate_by_nothing() -> None:
    one = results([1.0, 2.0], w=torch.ones(3))
    assert deviation(one, one).value == 0.0


def test_the_worst_is_named() -> None:
    before = results([1.0, 2.0], w=torch.tensor([3.0, 4.0]), b=torch.tensor([5.0]))
    after = results([1.0, 2.02], w=torch.tensor([3.0, 4.5]), b=torch.tensor([5.0]))
    found = deviation(before, after)
    assert found.value == pytest.approx(0.1)  # 0.5 of a norm of 5; the loss is off by 0.01
    assert found.what == "the gradient of w"
    assert deviation(before, results([1.0, 3.0], w=before.gradients["w"], b=torch.tensor([5.0])))
    assert deviation(before, before).what == "nothing"


def test_a_gradient_that_is_zero_but_for_rounding_is_measured_against_the_usual_size() -> None:
    before = results([1.0], w=torch.tensor([10.0]), b=torch.tensor([1e-9]))
    after = results([1.0], w=torch.tensor([10.0]), b=torch.tensor([-1e-9]))
    usual = math.sqrt(100 / 2)
    assert deviation(before, after).value == pytest.approx(2e-9 / (0.1 * usual))


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_is_no_longer_finite_deviates_without_bound(wrong: float) -> None:
    before = results([1.0], w=torch.ones(2))
    assert deviation(before, results([wrong], w=torch.ones(2))).value == math.inf
    after = results([1.0], w=torch.tensor([1.0, wrong]))
    assert deviation(before, after).value == math.inf
    assert deviation(after, before).value == 0.0  # fp16 overflows in both: nothing to compare


def test_a_missing_gradient_deviates_without_bound() -> None:
    found = deviation(results([1.0], w=torch.ones(2)), results([1.0]))
    assert (found.value, found.what) == (math.inf, "the gradient of w")


def test_updates_are_compared_for_optimizers_and_where_there_are_no_gradients() -> None:
    before = Results([1.0], {"w": torch.ones(2)}, {"w": torch.ones(2)})
    after = Results([1.0], {"w": torch.ones(2)}, {"w": torch.tensor([1.0, 1.5])})
    assert deviation(before, after).value == 0.0
    assert deviation(before, after, updates=True).value == pytest.approx(0.5 / math.sqrt(2))
    own_step = deviation(Results([1.0], {}, before.updates), Results([1.0], {}, after.updates))
    assert own_step.what == "the update of w"


def test_gradients_are_copies() -> None:
    model = nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    copies = gradients_of(model)
    assert model.weight.grad is not None
    model.weight.grad.zero_()
    assert copies["weight"].tolist() == [[1.0, 1.0]]
