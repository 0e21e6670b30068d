"""The first tensor that turned non-finite, for nets where it is known which one that is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from drumline.training.stability.diagnosis import BadTensor, first_bad_tensor

CPU = torch.device("cpu")
INPUT = torch.linspace(-1, 1, 12).reshape(4, 3)


class Apply(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def net(function: Callable[[Tensor], Tensor]) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), Apply(function), nn.Linear(5, 2))


def diagnose(model: nn.Module, batch: Tensor = INPUT, scale: float = 1.0) -> BadTensor | None:
    return first_bad_tensor(model, [lambda: scale * model(batch).square().sum()], device=CPU)


@pytest.mark.parametrize(
    ("function", "bad"),
    [
        (torch.log, BadTensor("1", "output")),  # of negative numbers: NaN
        (lambda x: x / 0, BadTensor("1", "output")),
        (lambda x: torch.sqrt(x * 0), BadTensor("1", "gradient")),  # 0, but its slope is infinite
        (torch.tanh, None),
    ],
)
def test_the_layer_that_makes_it_is_named(
    function: Callable[[Tensor], Tensor], bad: BadTensor | None
) -> None:
    assert diagnose(net(function)) == bad


def test_an_overflow_of_float16_names_the_layer_that_overflowed() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 1))
    with torch.no_grad():
        for layer in model:
            assert isinstance(layer, nn.Linear)
            layer.weight.fill_(200.0)
            layer.bias.fill_(0.0)

    def loss() -> Tensor:  # 600, then 480,000, which is more than 65,504
        with torch.autocast("cpu", torch.float16):
            return model(torch.ones(2, 3)).float().sum()

    assert first_bad_tensor(model, [loss], device=CPU) == BadTensor("1", "output")


def test_a_bad_weight_is_named_before_what_it_spoils() -> None:
    model = net(torch.tanh)
    with torch.no_grad():
        model[2].bias[1] = float("inf")
    assert diagnose(model) == BadTensor("2", "weight", "bias")


def test_bad_data_is_the_input_of_the_model() -> None:
    batch = INPUT.clone()
    batch[2, 1] = float("nan")
    assert diagnose(net(torch.tanh), batch) == BadTensor("", "input")


def test_what_follows_the_model_is_the_loss() -> None:
    model = net(torch.tanh)
    found = first_bad_tensor(model, [lambda: model(INPUT).sum() * float("nan")], device=CPU)
    assert found == BadTensor("loss", "output")


def test_a_gradient_that_overflows_from_a_finite_loss_is_named() -> None:
    model = nn.Sequential(nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        model[0].weight.fill_(1e-30)
    found = diagnose(model, torch.full((1, 1), 1e30), scale=1e30)
    assert found == BadTensor("0", "gradient", "weight")  # 2 * 1e30 * 1e30


def test_the_masks_of_attention_are_no_finding() -> None:
    assert diagnose(nn.Sequential(nn.Linear(3, 3), nn.Softmax(1))) is None

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend = nn.MultiheadAttention(4, 1, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            mask = torch.full((3, 3), float("-inf")).triu(1)
            return self.attend(x, x, x, attn_mask=mask, need_weights=False)[0]

    assert diagnose(Masked(), torch.randn(2, 3, 4)) is None


def test_the_second_micro_batch_is_looked_at_too() -> None:
    model = net(torch.log1p)
    good, bad = torch.zeros(1, 3), torch.full((1, 3), -100.0)
    with torch.no_grad():
        model[0].weight.fill_(0.01)
        model[0].bias.fill_(0.1)
    losses = [lambda: model(good).sum(), lambda: model(bad).sum()]
    assert first_bad_tensor(model, losses[:1], device=CPU) is None
    assert first_bad_tensor(model, losses, device=CPU) == BadTensor("1", "output")


def test_nothing_is_changed_by_looking() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 1))
    model(INPUT).sum().backward()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    random = torch.get_rng_state()
    assert diagnose(model) is None
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, gradient)
    assert torch.equal(torch.get_rng_state(), random)
    hooks = [m._forward_hooks or m._forward_pre_hooks for m in model.modules()]
    assert not any(hooks)
    assert all(not p._backward_hooks for p in model.parameters())
