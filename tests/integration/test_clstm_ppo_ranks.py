"""Reinforcement learning on one rank and on several: the same episodes, the same weights."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support import (
    Finished,
    assert_same_bits,
    largest_difference,
    run_to_end,
    train,
    write_config,
)

FP64 = 1e-9
ROLLOUT, PER_ROLLOUT, PLANNED = 6 * 32, 6, 36
"""Six environments of 32 steps; two passes of three minibatches; six rollouts."""

CONFIG: dict[str, Any] = {
    "task": {
        "name": "clstm_ppo",
        "environment": {"name": "cartpole_memory", "episode_limit": 25},
        "environments": 6,
        "rollout_steps": 32,
        "sequence_length": 16,
        "rollout_epochs": 2,
        "total_steps": 6 * ROLLOUT,
        "policy": {
            "window": 3,
            "features": 8,
            "attention_heads": 2,
            "hidden": 12,
            "layers": 2,
            "layer_norm": True,
            "heads": [8],
        },
        "loss": {"target_kl": 0.003, "entropy": 0.01},
        "evaluation": {"episodes": 7},
    },
    "global_batch": 64,
    "precision": "fp64",
    "clip_norm": 0.5,
    "optimizer": {"lr": 0.03},
    "schedule": {"name": "linear"},
    "logging": {"every_steps": 1},
    "checkpoint": {"every_steps": 2, "keep_last": 100},
    "stability": {"fingerprint_every": 1},
}


def run_on(devices: str, folder: Path) -> Finished:
    config = write_config(folder / "config.yaml", CONFIG)
    return run_to_end(train(config, devices), folder).succeeded()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[Finished]:
    """The run on one rank and on three, made at the same time."""
    folders = [tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("three")]
    with ThreadPoolExecutor() as pool:
        return list(pool.map(run_on, ["cpu:1", "cpu:3"], folders))


@pytest.fixture(scope="module")
def one(both: list[Finished]) -> Finished:
    return both[0]


@pytest.fixture(scope="module")
def three(both: list[Finished]) -> Finished:
    return both[1]


def test_three_ranks_learn_what_one_does(one: Finished, three: Finished) -> None:
    """Scales, advantages and the stop by KL divergence are over the environments of all ranks. Of
    four sequences in a minibatch a rank may have none. Replicas are compared after every update.
    """
    assert three.losses == {
        step: pytest.approx(loss, abs=FP64) for step, loss in one.losses.items()
    }
    assert largest_difference(three.weights, one.weights) < FP64
    assert three.result["metrics"] == pytest.approx(one.result["metrics"], abs=FP64)
    for ours, theirs in zip(three.events("step"), one.events("step"), strict=True):
        for name in ("episodes", "episode_return", "explained_variance", "kl", "environment_steps"):
            assert ours["metrics"].get(name) == pytest.approx(theirs["metrics"].get(name), abs=FP64)


def test_all_ranks_together_make_the_steps_asked_for(three: Finished) -> None:
    last = three.events("step")[-1]
    assert last["metrics"]["environment_steps"] == 6 * ROLLOUT
    assert three.event("run_started")["steps"] == PLANNED


def test_the_stop_by_divergence_leaves_out_minibatches_and_the_schedule_goes_by_the_plan(
    one: Finished, three: Finished
) -> None:
    """A linear schedule from 0.03 to 0 over the planned steps tells which of them were taken."""
    taken = [round(PLANNED * (1 - event["lr"] / 0.03)) for event in one.events("step")]
    assert len(taken) == one.result["step"] < PLANNED
    assert taken == sorted(set(taken))
    assert {number // PER_ROLLOUT for number in taken} == set(range(6))
    for event, number, following in zip(one.events("step"), taken, taken[1:], strict=False):
        was_left = following != number + 1
        is_last = number % PER_ROLLOUT == PER_ROLLOUT - 1
        assert was_left == (event["metrics"]["kl"] > 0.003 and not is_last)
    assert [event["lr"] for event in three.events("step")] == [
        event["lr"] for event in one.events("step")
    ]


@pytest.mark.parametrize("devices", ["cpu:3", "cpu:2"])
def test_a_broken_run_goes_on_as_if_it_were_whole(
    devices: str, three: Finished, tmp_path: Path
) -> None:
    """From within a rollout: bit for bit on as many ranks, to the last digits on another number."""
    epochs = {event["step"]: event["epoch"] for event in three.events("step")}
    saved = [event["step"] for event in three.events("checkpoint")]
    at = next(step for step in saved if step > 8 and epochs[step + 1] == epochs[step])
    run = tmp_path / "run"
    shutil.copytree(three.run, run)
    (run / "result.json").unlink()
    for folder in (run / "checkpoints").glob("step-*"):
        if int(folder.name.removeprefix("step-")) > at:
            shutil.rmtree(folder)
    resume = ["-m", "drumline", "train", "--resume", "run", "--gpus", devices]
    resumed = run_to_end(resume, tmp_path).succeeded()
    assert resumed.events("run_started")[-1]["step"] == at
    if devices == "cpu:3":
        assert_same_bits(resumed.weights, three.weights)
        assert resumed.losses == three.losses
    else:
        assert largest_difference(resumed.weights, three.weights) < FP64
    assert resumed.result["metrics"] == pytest.approx(three.result["metrics"], abs=FP64)


def test_evaluate_gives_what_the_run_ended_with(three: Finished, tmp_path: Path) -> None:
    command = ["-m", "drumline", "evaluate", str(three.run), "--json", "--gpus", "cpu"]
    done = run_to_end(command, tmp_path).succeeded()
    told = json.loads(done.out)
    assert told["step"] == three.result["step"]
    assert told["metrics"] == pytest.approx(three.result["metrics"], abs=FP64)


@pytest.mark.gpu
def test_two_gpus_learn_what_one_does(tmp_path: Path) -> None:
    one, two = run_on("1", tmp_path / "one"), run_on("2", tmp_path / "two")
    assert two.losses == {step: pytest.approx(loss, abs=FP64) for step, loss in one.losses.items()}
    assert largest_difference(two.weights, one.weights) < FP64
    assert two.result["metrics"] == pytest.approx(one.result["metrics"], abs=FP64)
