"""`optimize`: what helps is kept, everything else is undone, and nothing else is left behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from counted_work import Cheating, Clock, Failing, Refusing, Repeating, Rounds, loader, loss, rules
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from drumline.errors import BadInput
from drumline.training.performance import Outcome, Report, Switch, optimize


class Tried:
    """A small model whose switches were tried."""

    def __init__(self, switches: list[Switch], measure: Callable[..., Tensor] = loss) -> None:
        torch.manual_seed(3)
        self.clock = Clock()
        self.model = Repeating(self.clock)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.loader = loader(generator=torch.Generator().manual_seed(8))
        self.report = optimize(
            self.model, self.loader, self.optimizer, measure,
            switches=switches, rules=rules(self.clock),
        )  # fmt: skip

    def epochs(self, count: int) -> tuple[list[int], Tensor]:
        """Train on; the samples in order, and the weights."""
        seen = []
        for _ in range(count):
            for batch in self.loader:
                self.optimizer.zero_grad()
                loss(self.model, batch).mean().backward()
                self.optimizer.step()
                seen += batch[2].tolist()
        return seen, nn.utils.parameters_to_vector(self.model.state_dict().values())


def test_what_saves_work_is_kept_and_what_brings_nothing_is_undone() -> None:
    tried = Tried([Rounds("half", 2), Rounds("same", 2), Rounds("double", 8)])
    half, same, double = tried.report.rows
    assert (half.outcome, half.before_s, half.after_s) == (Outcome.APPLIED, 4.0, 2.0)
    assert half.gain == pytest.approx(0.5)
    assert half.deviation == 0.0
    assert (same.outcome, same.gain) == (Outcome.UNDONE, 0.0)
    assert (double.outcome, double.gain) == (Outcome.UNDONE, pytest.approx(-3.0))
    assert tried.model.rounds == 2
    assert tried.report.applied == ["half"]
    assert (tried.report.before_s, tried.report.after_s) == (4.0, 2.0)


def test_several_that_are_kept_are_timed_together() -> None:
    report = Tried([Rounds("half", 2), Rounds("quarter", 1)]).report
    assert [row.gain for row in report.rows] == [pytest.approx(0.5), pytest.approx(0.5)]
    assert (report.before_s, report.after_s) == (4.0, 1.0)
    assert report.gain == pytest.approx(0.75)


def test_a_switch_that_changes_results_is_undone_and_says_what_it_changed() -> None:
    tried = Tried([Cheating(1.001)])
    row = tried.report.row("cheating")
    assert row.outcome is Outcome.UNDONE
    assert row.deviation is not None
    assert row.deviation > 1e-4 == row.tolerance
    assert "the gradient of inner." in row.reason or "the loss of step" in row.reason
    assert row.gain is None  # a wrong result is not worth timing
    assert (tried.model.rounds, tried.model.scale) == (4, 1.0)


def test_rounding_is_let_through() -> None:
    row = Tried([Cheating(1.000001)]).report.row("cheating")
    assert row.outcome is Outcome.APPLIED
    assert row.deviation is not None
    assert 0 < row.deviation < 1e-4


@pytest.mark.parametrize("when", ["apply", "forward"])
def test_a_switch_that_raises_is_undone_and_reported(when: str) -> None:
    tried = Tried([Failing("broken", when), Rounds("half", 2)])
    row = tried.report.row("broken")
    assert row.outcome is Outcome.UNDONE
    assert row.reason.startswith("it failed: RuntimeError: ")
    assert "\n" not in row.reason
    assert tried.report.applied == ["half"]
    assert tried.model.scale == 1.0


def test_a_switch_that_does_not_apply_says_why() -> None:
    row = Tried([Refusing("elsewhere", 1)]).report.row("elsewhere")
    assert (row.outcome, row.reason) == (Outcome.NOT_APPLICABLE, "not here")


def test_training_goes_on_as_if_nothing_had_been_tried() -> None:
    """Weights, statistics of BatchNorm, dropout masks, moments and the order of samples."""
    untouched = Tried([])
    plain_model = Repeating(Clock())
    torch.manual_seed(3)
    switches = [Rounds("half", 2), Rounds("same", 2), Cheating(1.5), Failing("broken", "forward")]
    tried = Tried(switches)
    torch.manual_seed(11)
    expected = untouched.epochs(2)
    torch.manual_seed(11)
    samples, weights = tried.epochs(2)
    assert samples == expected[0]
    assert sorted(samples[:48]) == sorted(samples[48:]) == list(range(48))
    assert torch.equal(weights, expected[1])
    assert len(weights) == sum(t.numel() for t in plain_model.state_dict().values())


def test_random_generators_go_on_where_they_were() -> None:
    torch.manual_seed(4)
    model = Repeating(Clock())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = torch.get_rng_state()
    optimize(
        model, loader(), optimizer, loss, switches=[Rounds("half", 2)], rules=rules(model.clock)
    )
    assert torch.equal(torch.get_rng_state(), expected)
    assert not optimizer.state
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_loss_that_is_different_every_time_cannot_be_compared() -> None:
    draws = torch.Generator()  # of its own, so nobody can put it back

    def noisy(model: nn.Module, batch: Any) -> Tensor:
        return loss(model, batch) * torch.rand((), generator=draws)

    row = Tried([Rounds("half", 2)], noisy).report.row("half")
    assert row.outcome is Outcome.NOT_APPLICABLE
    assert row.reason.startswith("the same steps taken twice differ: ")


class Stream(IterableDataset[list[Tensor]]):
    def __iter__(self) -> Any:
        raise AssertionError("a stream must not be read")


def test_a_stream_is_left_alone() -> None:
    clock = Clock()
    model = Repeating(clock)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stream: DataLoader[Any] = DataLoader(Stream(), 8)
    with pytest.raises(BadInput, match="a stream cannot be read twice"):
        optimize(model, stream, optimizer, loss, rules=rules(clock))
    report = optimize(
        model, stream, optimizer, loss, switches=[Rounds("half", 2)],
        batches=list(loader())[:2], rules=rules(clock),
    )  # fmt: skip
    assert report.applied == ["half"]


def test_the_report_as_text_and_as_json() -> None:
    report: Report = Tried([Rounds("half", 2), Refusing("elsewhere", 1)]).report
    assert str(report).splitlines() == [
        "half       applied: it saves +50.0% ± 0.0% of a step",
        "elsewhere  not applicable: not here",
        "together: 4000.000 ms to 2000.000 ms a step (50.0%)",
    ]
    plain = json.loads(report.to_json())
    assert plain["rows"][0]["outcome"] == "applied"
    assert (plain["device"], plain["ranks"]) == ("CPU", 1)
    with pytest.raises(KeyError):
        report.row("unknown")
