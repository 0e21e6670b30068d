"""The Trainer in one process: a whole run, its files, stopping and going on."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drumline.config import RunConfig, load_config, parse_config
from drumline.errors import BadInput, NumericsError
from drumline.run_directory import RunDirectory
from drumline.training import Result, Trainer
from drumline.training.checkpoint import CheckpointStore

INPUTS = torch.randn(20, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
DATA = [(row, row.sum() * torch.ones(1, dtype=torch.float64)) for row in INPUTS]


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Dropout(0.2), nn.Linear(5, 1))


def squared(model: nn.Module, batch: Any) -> Tensor:
    inputs, targets = batch
    return ((model(inputs) - targets) ** 2).sum(1)


def config_of(folder: Path, **keys: Any) -> RunConfig:
    return parse_config(
        {
            "steps": 12,
            "global_batch": 6,
            "precision": "fp64",
            "run_dir": str(folder / "run"),
            "optimizer": {"lr": 0.05},
            "logging": {"every_steps": 4},
            **keys,
        }
    )


def fit(config: RunConfig, loss: Any = squared, **options: Any) -> Result:
    return Trainer(config, model=build, data=DATA, loss=loss, **options).fit()


def events(result: Result, kind: str) -> list[dict[str, Any]]:
    return [event for event in RunDirectory(result.run_dir).events() if event["kind"] == kind]


def weights(folder: Path) -> dict[str, Tensor]:
    """The weights of the newest checkpoint of a run."""
    model = build().double()
    CheckpointStore(folder / "run" / "checkpoints").all()[0].load_weights(model)
    return model.state_dict()


def stopping_at(step: int, number: signal.Signals = signal.SIGTERM) -> Callable[..., Tensor]:
    """A loss that sends this process a signal in the forward of a step."""
    calls = iter(range(10**6))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        if next(calls) == step:
            signal.raise_signal(number)
        return squared(model, batch)

    return loss


def test_a_run_leaves_its_config_events_checkpoint_and_result(tmp_path: Path) -> None:
    result = fit(config_of(tmp_path))
    assert (result.status, result.step, result.samples, result.exit_code) == ("done", 12, 60, 0)
    run = RunDirectory(tmp_path / "run")
    written = run.result()
    assert written is not None
    assert (written["status"], written["step"], written["exit_code"]) == ("done", 12, 0)
    assert [event["step"] for event in events(result, "step")] == [4, 8, 12]
    assert [event["step"] for event in events(result, "checkpoint")] == [12]
    (started,) = events(result, "run_started")
    assert (started["parameters"], started["world_size"], started["steps"]) == (26, 1, 12)
    assert load_config(run.config_path) == config_of(tmp_path)


def test_the_samples_of_epochs_are_counted_exactly(tmp_path: Path) -> None:
    result = fit(config_of(tmp_path, steps=None, epochs=2))
    assert (result.step, result.samples) == (8, 40)


def test_the_loss_shown_is_the_mean_over_samples_since_the_last_time(tmp_path: Path) -> None:
    seen: list[Tensor] = []

    def loss(model: nn.Module, batch: Any) -> Tensor:
        losses = squared(model, batch)
        seen.append(losses.detach())
        return losses

    result = fit(config_of(tmp_path), loss)
    shown = [event["loss"] for event in events(result, "step")]
    means = [torch.cat(seen[start : start + 4]).mean().item() for start in (0, 4, 8)]
    assert shown == pytest.approx(means, rel=1e-12)


def test_the_learning_rate_follows_the_schedule(tmp_path: Path) -> None:
    config = config_of(tmp_path, schedule={"name": "linear", "warmup_steps": 3})
    shown = [event["lr"] for event in events(fit(config), "step")]
    assert shown == pytest.approx([0.05 * f for f in (1, 5 / 9, 1 / 9)])  # steps 3, 7, 11 from 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_stops_at_the_next_boundary_and_says_resume_me(
    tmp_path: Path, number: signal.Signals
) -> None:
    handlers = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)]
    result = fit(config_of(tmp_path), stopping_at(4, number))
    assert (result.status, result.exit_code) == ("stopped", 75)
    assert 5 <= result.step <= 6
    assert events(result, "stop_requested")[0]["signal"] == number.name
    assert [event["step"] for event in events(result, "checkpoint")] == [result.step]
    after = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)]
    assert after == handlers


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_stopped_and_resumed_is_bit_identical_to_unbroken(tmp_path: Path, optimizer: str) -> None:
    keys = {
        "optimizer": {"name": optimizer, "lr": 0.05, "momentum": 0.9 * (optimizer == "sgd")},
        "schedule": {"name": "cosine", "warmup_steps": 3},
        "micro_batch": 4,
    }
    fit(config_of(tmp_path / "unbroken", **keys))
    stopped = fit(config_of(tmp_path / "broken", **keys), stopping_at(9))
    assert stopped.status == "stopped"
    resumed = fit(config_of(tmp_path / "broken", **keys))
    assert (resumed.status, resumed.step, resumed.samples) == ("done", 12, 60)
    assert events(resumed, "run_started")[-1]["step"] == stopped.step
    one, other = weights(tmp_path / "unbroken"), weights(tmp_path / "broken")
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def test_a_damaged_checkpoint_is_reported_and_the_one_before_used(tmp_path: Path) -> None:
    config = config_of(tmp_path, checkpoint={"every_steps": 5})
    first = fit(config)
    newest = CheckpointStore(first.run_dir / "checkpoints").all()[0]
    assert newest.step == 12
    newest.weights_path.write_bytes(newest.weights_path.read_bytes()[:-1])
    again = fit(config)
    (refused,) = events(again, "checkpoint_refused")
    assert "truncated" in refused["reason"]
    assert events(again, "run_started")[-1]["resumed_from"].endswith("step-0000000010")
    assert again.step == 12


def test_a_run_that_is_done_is_not_trained_on(tmp_path: Path) -> None:
    fit(config_of(tmp_path))
    before = weights(tmp_path)
    again = fit(config_of(tmp_path))
    assert (again.status, again.step) == ("done", 12)
    for name, value in weights(tmp_path).items():
        assert torch.equal(value, before[name])


def test_micro_batches_do_not_change_the_result(tmp_path: Path) -> None:
    def plain() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))

    found = []
    for micro_batch in (1, 4, 6):
        config = config_of(tmp_path / str(micro_batch), micro_batch=micro_batch)
        Trainer(config, model=plain, data=DATA, loss=squared).fit()
        model = plain().double()
        run = tmp_path / str(micro_batch) / "run" / "checkpoints"
        CheckpointStore(run).all()[0].load_weights(model)
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found[0], found[2], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("diagnosed", "named"), [(True, "loss function"), (False, "0.weight")])
def test_a_run_that_only_skips_ends_with_the_reason(
    tmp_path: Path, diagnosed: bool, named: str
) -> None:
    config = config_of(tmp_path, max_skipped_steps=3, stability={"enabled": diagnosed})
    with pytest.raises(NumericsError, match="3 steps in a row") as raised:
        fit(config, lambda model, batch: squared(model, batch) * float("nan"))
    assert named in raised.value.message
    run = RunDirectory(tmp_path / "run")
    assert [e["step"] for e in run.events() if e["kind"] == "step_skipped"] == [1, 2, 3]


def test_nothing_to_train_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="names no task"):
        Trainer(config_of(tmp_path))
    with pytest.raises(BadInput, match="names no task"):
        Trainer(config_of(tmp_path), model=build)


def test_without_a_run_directory_a_new_one_is_made(tmp_path: Path) -> None:
    config = config_of(tmp_path, run_dir=None, runs_dir=str(tmp_path / "runs"), name="my run")
    result = fit(config)
    assert result.run_dir.parent == tmp_path / "runs"
    assert result.run_dir.name.startswith("my-run-")
    assert RunDirectory.open(result.run_dir).config_path.is_file()


def test_modules_given_ready_are_trained_in_place(tmp_path: Path) -> None:
    model = build().double()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    Trainer(config_of(tmp_path), model=model, data=DATA, loss=squared).fit()
    for name, value in weights(tmp_path).items():
        assert torch.equal(model.state_dict()[name], value)
        assert not torch.equal(before[name], value)
