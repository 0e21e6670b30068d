"""What each policy does, by value."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from watched_run import BATCH, ORDER, Seen, build, numbers_of_step, watched

from drumline.config import parse_config
from drumline.errors import ConfigError, NumericsError

SPIKE = dict.fromkeys(numbers_of_step(12), 10000.0)
LR = 0.01
NAN = {numbers_of_step(12)[1]: math.nan}


def test_a_warning_changes_nothing(tmp_path: Path) -> None:
    warned = watched(tmp_path / "warned", SPIKE)
    plain = watched(tmp_path / "plain", SPIKE, stability={"enabled": False})
    assert torch.equal(warned.weights[-1], plain.weights[-1])
    (found,) = warned.of("warning", code="loss_spike", step=12)
    assert found["loss"] == pytest.approx(warned.losses[11])
    assert found["usual"] == pytest.approx(np.mean(warned.losses[:11]))
    (grown,) = warned.of("warning", code="gradient_growth", step=12)
    assert grown["grad_norm"] == pytest.approx(warned.changes()[11] / LR, rel=1e-6)
    assert not plain.of("warning")


def test_warnings_of_one_finding_keep_their_distance(tmp_path: Path) -> None:
    poison = {number: 1e4 for step in (12, 13, 15, 18) for number in numbers_of_step(step)}
    keys = {"optimizer": {"name": "sgd", "lr": 1e-12}}
    seen = watched(tmp_path, poison, stability={"cooldown_steps": 4}, **keys)
    assert [event["step"] for event in seen.of("warning", code="loss_spike")] == [12, 18]


@pytest.mark.parametrize("finding", ["loss_spike", "gradient_growth"])
def test_a_skipped_update_is_not_made(tmp_path: Path, finding: str) -> None:
    seen = watched(tmp_path, SPIKE, stability={finding: "skip"})
    still = [step for step, change in enumerate(seen.changes(), 1) if change == 0]
    assert still == [12]
    (skipped,) = seen.of("step_skipped")
    assert skipped["step"] == 12
    assert ("loss" if finding == "loss_spike" else "gradient norm") in skipped["reason"]


def test_clipping_is_to_a_multiple_of_the_running_norm(tmp_path: Path) -> None:
    stability = {"gradient_growth": "clip", "clip_factor": 1.5}
    seen = watched(tmp_path / "clipped", SPIKE, stability=stability)
    changes = seen.changes()
    usual = np.exp(np.mean(np.log(changes[:11]))) / LR  # geometric mean, as the window is longer
    assert changes[11] == pytest.approx(LR * 1.5 * usual, rel=1e-6)
    plain = watched(tmp_path / "plain", SPIKE, stability={"enabled": False}).changes()
    assert changes[:11] == plain[:11]  # no other was clipped
    assert plain[11] > 10 * changes[11]


def test_the_tighter_of_two_clips_counts(tmp_path: Path) -> None:
    seen = watched(tmp_path, SPIKE, stability={"gradient_growth": "clip"}, clip_norm=1e-3)
    assert seen.changes()[11] == pytest.approx(LR * 1e-3, rel=1e-6)


def rates(seen: Seen) -> dict[int, float]:
    return {event["step"]: event["lr"] for event in seen.of("step")}


def test_the_learning_rate_is_lowered_for_a_while(tmp_path: Path) -> None:
    seen = watched(
        tmp_path,
        NAN,
        stability={"non_finite": "lower_lr", "lr_factor": 0.25, "lr_steps": 3},
        schedule={"name": "linear"},
    )
    plain = {step: 0.01 * (1 - (step - 1) / 20) for step in range(1, 21)}
    for step, lr in rates(seen).items():
        factor = 0.25 if step in (13, 14, 15) else 1.0
        assert lr == pytest.approx(factor * plain[step], rel=1e-12), step


def stopping(step: int) -> Callable[[int], None]:
    def during(call: int) -> None:
        if call == step:
            signal.raise_signal(signal.SIGTERM)

    return during


def test_a_lowered_rate_and_the_statistics_outlive_the_process(tmp_path: Path) -> None:
    stability = {"loss_spike": "lower_lr", "lr_steps": 6}
    keys: dict[str, Any] = {"stability": stability, "optimizer": {"name": "sgd", "lr": 1e-6}}
    whole = watched(tmp_path / "whole", SPIKE, **keys)
    broken = watched(tmp_path / "broken", SPIKE, during=stopping(13), **keys)
    assert broken.result is not None
    assert broken.result.status == "stopped"
    resumed = watched(tmp_path / "broken", SPIKE, seen=broken, **keys)
    assert rates(resumed) == rates(whole)
    assert rates(whole)[18] == pytest.approx(5e-7)
    assert rates(whole)[19] == pytest.approx(1e-6)
    assert torch.equal(resumed.weights[-1], whole.weights[-1])
    found = [
        [(e["code"], e["step"], e.get("usual")) for e in run.of("warning")]
        for run in (resumed, whole)
    ]
    assert found[0] == found[1]


def test_stop_ends_the_run_before_the_update(tmp_path: Path) -> None:
    seen = Seen()
    with pytest.raises(NumericsError, match="stopped at step 12") as raised:
        watched(tmp_path, SPIKE, stability={"loss_spike": "stop"}, seen=seen)
    assert raised.value.values["loss"] == pytest.approx(seen.losses[11])
    assert len(seen.numbers) == 12


def test_rollback_goes_on_from_the_checkpoint_with_the_samples_after(tmp_path: Path) -> None:
    seen = watched(
        tmp_path, SPIKE, stability={"loss_spike": "rollback"}, checkpoint={"every_steps": 5}
    )
    assert seen.numbers == [ORDER[p : p + BATCH] for p in range(0, 80, BATCH)]  # each step once
    assert torch.equal(seen.weights[12], seen.weights[10])  # step 13 begins as step 11 did
    (told,) = seen.of("warning", code="loss_spike")
    assert (told["step"], told["went_back_to"]) == (12, 10)
    assert seen.result is not None
    assert (seen.result.step, seen.result.samples) == (20, 80)
    assert seen.of("step")[-1]["skipped"] == 2  # steps 11, given up, and 12


def test_rollbacks_are_bounded(tmp_path: Path) -> None:
    poison = {number: math.nan for step in (8, 12, 16) for number in numbers_of_step(step)}
    stability = {"non_finite": "rollback", "max_rollbacks": 2}
    seen = Seen()
    with pytest.raises(NumericsError, match="after 2 rollbacks"):
        watched(tmp_path, poison, stability=stability, checkpoint={"every_steps": 5}, seen=seen)
    told = seen.of("warning", code="non_finite")
    assert [(event["step"], event["went_back_to"]) for event in told] == [(8, 5), (12, 10)]


def test_rollback_passes_by_checkpoints_with_bad_weights(tmp_path: Path) -> None:
    """The weights turn bad at step 9 behind the watchers' back, and step 10 is saved."""
    nets: list[nn.Module] = []

    def noting() -> nn.Module:
        nets.append(build())
        return nets[-1]

    def spoil(call: int) -> None:
        if call == 10:
            with torch.no_grad():
                nets[-1][2].bias.fill_(math.nan)  # type: ignore[index,operator,union-attr]

    seen = watched(
        tmp_path,
        model=noting,
        during=spoil,
        stability={"non_finite": "rollback"},
        checkpoint={"every_steps": 5},
    )
    # Step 10 is bad and rolled back before it is saved; the checkpoint of step 5 is good.
    (told,) = seen.of("warning", code="non_finite")
    assert (told["step"], told["went_back_to"]) == (10, 5)
    (bad,) = seen.of("non_finite")
    assert (bad["module"], bad["tensor"], bad["parameter"]) == ("2", "weight", "bias")
    assert bool(torch.isfinite(seen.weights[-1]).all())


def test_without_a_checkpoint_yet_the_step_is_only_skipped(tmp_path: Path) -> None:
    poison = dict.fromkeys(numbers_of_step(3), math.nan)
    seen = watched(
        tmp_path, poison, stability={"non_finite": "rollback"}, checkpoint={"every_steps": 5}
    )
    (told,) = seen.of("warning", code="non_finite")
    assert "no checkpoint yet" in told["message"]
    assert seen.of("step")[-1]["skipped"] == 1


def test_a_non_finite_step_names_the_first_bad_tensor(tmp_path: Path) -> None:
    class Logarithm(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.log(x)

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), Logarithm(), nn.Linear(4, 1))

    seen = Seen()
    with pytest.raises(NumericsError, match="the output of 1 was the first") as raised:
        watched(tmp_path, model=model, max_skipped_steps=2, seen=seen)
    assert "2 steps in a row" in raised.value.message
    first = seen.of("non_finite")[0]
    assert (first["step"], first["module"], first["tensor"], first["rank"]) == (1, "1", "output", 0)


def test_diagnoses_are_bounded_except_for_the_last(tmp_path: Path) -> None:
    poison = dict.fromkeys(ORDER, math.nan)
    stability = {"max_diagnoses": 2}
    seen = Seen()
    with pytest.raises(NumericsError, match="the loss function"):
        watched(tmp_path, poison, stability=stability, max_skipped_steps=6, seen=seen)
    assert [event["step"] for event in seen.of("non_finite")] == [1, 2, 6]


class Wide(nn.Module):
    """Its first layer puts out some 100,000, more than fp16 can hold; the rest is ordinary."""

    def __init__(self) -> None:
        super().__init__()
        self.grow, self.head = nn.Linear(3, 4), nn.Linear(4, 1)
        with torch.no_grad():
            self.grow.weight.copy_(2e5 * torch.eye(4)[:, :3])

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.grow(x) * 1e-5)


def test_widened_precision_makes_an_overflowing_network_train(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"model": Wide, "precision": "fp16", "steps": 60}
    keys["optimizer"] = {"name": "adam", "lr": 0.02}
    narrow = watched(tmp_path / "narrow", **keys)
    seen = watched(tmp_path / "wide", stability={"non_finite": "widen_precision"}, **keys)
    assert narrow.of("step")[-1]["skipped"] > 40
    told = [event["message"] for event in seen.of("warning", code="non_finite")]
    assert len(told) == 1
    assert "grow computes in bf16 from now on" in told[0]
    early = seen.of("step")[9]["skipped"]
    assert seen.of("step")[-1]["skipped"] == early < 10  # those were for the loss scale
    losses = [event["loss"] for event in seen.of("step")]
    assert np.mean(losses[-5:]) < 0.1 * np.mean(losses[10:15])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"stability": {"loss_spike": "rollback"}}, "checkpoint.every_steps"),
        ({"stability": {"non_finite": "widen_precision"}}, "needs precision fp16 or bf16"),
        ({"stability": {"update_ratio": "clip"}}, "update_ratio"),
        ({"stability": {"non_finite": "warn"}}, "non_finite"),
        ({"stability": {"lr_factor": 1.0}}, "lr_factor"),
    ],
)
def test_policies_that_cannot_act_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config({"steps": 1, **keys})
