"""What a stage does with one micro-batch, without a pipeline around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drumline.distributed.strategies.pipeline.conveyor import rounded
from drumline.distributed.strategies.pipeline.passes import Activation, Passes, StagePass
from drumline.errors import BadInput

CPU = torch.device("cpu")
DATA = torch.arange(10.0).view(5, 2)
Loss = Callable[[nn.Module, int], Tensor]


def squared(model: nn.Module, number: int) -> Tensor:
    """Micro-batches of three and two samples."""
    samples = DATA[:3] if number == 0 else DATA[3:]
    answer: Tensor = model(samples)
    return answer.square().sum()


def stage_pass(
    module: nn.Module, number: int, loss: Loss = squared, count: int = 3
) -> tuple[StagePass, list[tuple[int, int | None]]]:
    """A stage of three, and where its `around` was entered."""
    entered = []

    @contextmanager
    def around(place: int, stage: int | None) -> Iterator[None]:
        entered.append((place, stage))
        yield

    made = StagePass(module, number, count, [module], CPU)
    made.passes = Passes([3, 2], "layout", loss, around)
    return made, entered


def number(value: int) -> Tensor:
    return torch.tensor([value])


def measured(made: StagePass, *received: Activation) -> StagePass:
    """Ready to be run with buffers of four samples."""
    made.gives, made.samples = tuple(made.measure(received)), 4
    return made


TWO = Activation((2,), torch.float32)


def test_the_first_stage_gets_what_the_loss_function_calls_the_model_with() -> None:
    made, entered = stage_pass(nn.Linear(2, 2), 0)
    measured(made)
    assert made.gives == (TWO,)
    entered.clear()
    sent = made(number=number(1))
    assert sent.shape == (4, 2)
    assert torch.equal(sent[:2], made.stage(DATA[3:]))
    assert not sent[2:].any()  # zeros, up to the buffers' size
    assert entered == [(1, None), (1, 0)]


def test_a_middle_stage_sees_true_samples_only() -> None:
    made, _ = stage_pass(nn.BatchNorm1d(2), 1)
    measured(made, TWO)
    assert made.stage.running_mean is not None
    received = torch.full((4, 2), 1e30)  # what a buffer held before
    received[:2] = DATA[3:]
    sent = made(received.requires_grad_(), number=number(1))
    expected = nn.BatchNorm1d(2)(DATA[3:])
    assert torch.equal(sent[:2], expected)
    sent.sum().backward()
    assert received.grad is not None
    assert not received.grad[2:].any()


def test_an_empty_micro_batch_passes_by_and_lets_zeros_back() -> None:
    made, entered = stage_pass(nn.Linear(2, 2), 1)
    measured(made, TWO)
    entered.clear()
    received = torch.full((4, 2), torch.nan, requires_grad=True)
    sent = made(received, number=number(2))
    sent.backward(torch.ones(4, 2))
    assert received.grad is not None
    assert not sent.any() and not received.grad.any()
    assert made.stage.weight.grad is None and not entered


def test_the_last_stage_gives_the_loss() -> None:
    made, entered = stage_pass(nn.Linear(2, 2), 2)
    measured(made, TWO)
    entered.clear()
    received = torch.randn(4, 2, requires_grad=True)
    loss = made(received, number=number(0))
    assert loss.item() == pytest.approx(made.stage(received[:3]).square().sum().item())
    assert loss.dtype == torch.float64
    assert entered == [(0, None), (0, 2)]
    assert made(received, number=number(2)).item() == 0.0


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_frozen_stage_still_sends_gradients_back(place: int) -> None:
    class Frozen(nn.Module):
        @torch.no_grad()
        def forward(self, samples: Tensor) -> Tensor:
            return samples * 2

    made, _ = stage_pass(Frozen(), place)
    received = [torch.ones(4, 2, requires_grad=True)] if place else []
    measured(made, *([TWO] if place else []))
    sent = made(*received, number=number(0))
    sent.backward(torch.ones_like(sent))
    assert [tensor.grad is not None and not tensor.grad.any() for tensor in received] == [
        True for _ in received
    ]


def test_an_activation_that_is_not_used_gets_zeros() -> None:
    class Ignores(nn.Module):
        def forward(self, used: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
            return used * 3, used + 1

    made, _ = stage_pass(Ignores(), 1)
    measured(made, TWO, TWO)
    used, other = (torch.ones(4, 2, requires_grad=True) for _ in range(2))
    first, second = made(used, other, number=number(0))
    (first + second).sum().backward()
    assert used.grad is not None and other.grad is not None
    assert used.grad[:3].eq(4).all() and not other.grad.any()


@pytest.mark.parametrize(
    ("loss", "place", "said"),
    [
        (lambda model, n: DATA.sum(), 0, "did not call the model"),
        (lambda model, n: DATA.sum(), 2, "did not call the model"),
        (lambda model, n: (model(DATA) + model(DATA)).sum(), 2, "called the model twice"),
    ],
)
def test_a_loss_function_calls_the_model_once(loss: Loss, place: int, said: str) -> None:
    made, _ = stage_pass(nn.Linear(2, 2), place, loss)
    made.samples = 4
    with pytest.raises(BadInput, match=said):
        made(*([torch.ones(4, 2)] if place else []), number=number(0))


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        (lambda samples: samples.sum(), "stage 1 gives a Tensor of torch.float32"),
        (lambda samples: samples.T, r"gives a tensor of shape \(2, 3\) for 3 samples"),
        (lambda samples: samples.long(), "gives a Tensor of torch.int64"),
        (lambda samples: {"x": samples}, "gives a dict"),
    ],
)
def test_what_cannot_be_sent_is_named(gives: Callable[[Tensor], Any], said: str) -> None:
    class Gives(nn.Module):
        def forward(self, samples: Tensor) -> Any:
            return gives(samples)

    made, _ = stage_pass(Gives(), 1)
    with pytest.raises(BadInput, match=said):
        made.measure([TWO])


def test_a_shape_that_changes_is_named_before_it_is_sent() -> None:
    class Grows(nn.Module):
        width = 1

        def forward(self, samples: Tensor) -> Tensor:
            self.width += 1
            return samples.sum(dim=1, keepdim=True).repeat(1, self.width)

    made, _ = stage_pass(Grows(), 1)
    measured(made, TWO)
    with pytest.raises(BadInput, match=r"gives \(3,\) of torch.float32 a sample, and gave \(2,\)"):
        made(torch.ones(4, 2), number=number(0))


def test_zero_bubble_cannot_call_a_layer_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, samples: Tensor) -> Tensor:
            return self.layer(self.layer(samples))

    made, _ = stage_pass(Twice(), 1)
    assert measured(made, TWO).gives == (TWO,)
    made.split_backward = True
    with pytest.raises(BadInput, match="layer is called twice in one pipeline stage"):
        made.measure([TWO])
    first, _ = stage_pass(Twice(), 0)  # torch does not split the first stage's backward
    first.split_backward = True
    assert first.measure([]) == [TWO]


@pytest.mark.parametrize(
    ("schedule", "ranks", "passes", "expected"),
    [
        ("gpipe", 4, 1, 1),
        ("1f1b", 4, 1, 4),
        ("1f1b", 4, 5, 5),
        ("interleaved_1f1b", 2, 1, 1),
        ("interleaved_1f1b", 2, 5, 6),  # two rounds of three
        ("interleaved_1f1b", 4, 10, 10),  # two rounds of five
        ("interleaved_1f1b", 4, 9, 10),
        ("zero_bubble", 4, 13, 15),  # three rounds of five
    ],
)
def test_a_schedule_takes_so_many_micro_batches(
    schedule: str, ranks: int, passes: int, expected: int
) -> None:
    assert rounded(passes, ranks, schedule) == expected
