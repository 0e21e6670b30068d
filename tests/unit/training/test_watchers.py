"""What hangs on the loop: evaluation, metrics, and which checkpoints are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_disk import fill, small_disk
from torch import Tensor, nn

from drumline.config import parse_config
from drumline.run_directory import RunDirectory
from drumline.training import Result, Trainer
from drumline.training.checkpoint import CheckpointStore

DATA = [torch.tensor([float(n)]) for n in range(8)]


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    return (model(batch) ** 2).sum(1)


def fit(folder: Path, scores: list[Any] | None = None, **keys: Any) -> Result:
    """Eight steps; the evaluations give the scores in turn."""
    left = iter(scores or [])
    config = parse_config(
        {
            "steps": 8,
            "global_batch": 4,
            "run_dir": str(folder / "run"),
            "optimizer": {"lr": 1e-3},
            "logging": {"every_steps": 3},
            **keys,
        }
    )
    return Trainer(
        config,
        model=lambda: nn.Linear(1, 1),
        data=DATA,
        loss=loss,
        evaluate=(lambda _: {"score": next(left)}) if scores else None,
    ).fit()


def steps_of(result: Result, kind: str) -> list[int]:
    events = RunDirectory(result.run_dir).events()
    return [event["step"] for event in events if event["kind"] == kind]


def kept(result: Result) -> list[int]:
    return sorted(c.step for c in CheckpointStore(result.run_dir / "checkpoints").all())


def test_metrics_come_every_so_many_steps_and_at_the_last(tmp_path: Path) -> None:
    assert steps_of(fit(tmp_path), "step") == [3, 6, 8]


@pytest.mark.parametrize(
    ("evaluation", "steps"),
    [
        ({}, [8]),
        ({"every_steps": 3}, [3, 6, 8]),
        ({"every_steps": 4}, [4, 8]),  # not twice at the end
        ({"every_steps": 3, "at_end": False}, [3, 6]),
        ({"at_end": False}, []),
    ],
)
def test_evaluations(tmp_path: Path, evaluation: dict[str, Any], steps: list[int]) -> None:
    result = fit(tmp_path, [0.5] * 9, evaluation=evaluation)
    assert steps_of(result, "evaluation") == steps
    assert result.metrics == ({"score": 0.5} if steps else {})


def test_an_evaluation_sees_the_model_in_evaluation_mode_without_gradients(tmp_path: Path) -> None:
    seen: list[tuple[bool, bool]] = []
    modes: list[bool] = []

    def evaluate(model: nn.Module) -> dict[str, float]:
        seen.append((model.training, torch.is_grad_enabled()))
        return {"score": 1.0}

    def noting(model: nn.Module, batch: Tensor) -> Tensor:
        modes.append(model.training)
        return loss(model, batch)

    config = parse_config(
        {"steps": 3, "run_dir": str(tmp_path), "evaluation": {"every_steps": 1}, "global_batch": 2}
    )
    Trainer(config, model=nn.Linear(1, 1), data=DATA, loss=noting, evaluate=evaluate).fit()
    assert seen == [(False, False)] * 3
    assert modes == [True] * 3


@pytest.mark.parametrize(
    ("checkpoint", "saved", "kept_steps"),
    [
        ({}, [8], [8]),
        ({"every_steps": 3}, [3, 6, 8], [3, 6, 8]),
        ({"every_steps": 2, "keep_last": 2}, [2, 4, 6, 8], [6, 8]),
        ({"at_end": False}, [], []),
    ],
)
def test_checkpoints(
    tmp_path: Path, checkpoint: dict[str, Any], saved: list[int], kept_steps: list[int]
) -> None:
    result = fit(tmp_path, checkpoint=checkpoint)
    assert steps_of(result, "checkpoint") == saved
    assert kept(result) == kept_steps


@pytest.mark.parametrize(
    ("goal", "scores", "saved", "kept_steps"),
    [
        # Evaluations after steps 2, 4, 6 and 8; saved when better than all before, and at the end.
        ("min", [0.9, 0.2, 0.5, 0.3], [2, 4, 8], [4, 8]),
        ("max", [0.9, 0.2, 0.5, 0.3], [2, 8], [2, 8]),
        ("min", [float("nan"), 0.2, float("nan"), 0.3], [4, 8], [4, 8]),
        ("min", [0.5, 0.5, 0.5, 0.5], [2, 8], [2, 8]),
        ("min", [torch.tensor(0.9), torch.tensor(0.2), 0.5, 0.3], [2, 4, 8], [4, 8]),
    ],
)
def test_the_best_by_the_metric_is_saved_and_kept(
    tmp_path: Path, goal: str, scores: list[Any], saved: list[int], kept_steps: list[int]
) -> None:
    result = fit(
        tmp_path,
        scores,
        evaluation={"every_steps": 2},
        checkpoint={"keep_last": 1, "keep_best": {"metric": "score", "goal": goal}},
    )
    assert steps_of(result, "checkpoint") == saved
    assert kept(result) == kept_steps


def test_a_metric_that_no_evaluation_gives_saves_nothing(tmp_path: Path) -> None:
    result = fit(
        tmp_path,
        [1.0] * 4,
        evaluation={"every_steps": 2},
        checkpoint={"keep_best": {"metric": "absent"}, "at_end": False},
    )
    assert kept(result) == []


def test_a_disk_that_fills_up_costs_the_checkpoint_and_not_the_run(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 256) as disk:
        run = RunDirectory.create(disk / "run")
        filler: list[Path] = []
        calls = iter(range(100))

        def filling(model: nn.Module, batch: Tensor) -> Tensor:
            step = next(calls)
            if step == 2:
                filler.append(fill(disk))
            if step == 6:
                filler.pop().unlink()
            return loss(model, batch)

        config = parse_config(
            {
                "steps": 8,
                "global_batch": 4,
                "run_dir": str(run.path),
                "checkpoint": {"every_steps": 2, "keep_last": 9},
            }
        )
        result = Trainer(config, model=nn.Linear(1, 1), data=DATA, loss=filling).fit()
        assert result.status == "done"
        assert kept(result) == [2, 8]  # those of steps 4 and 6 met a full disk
        assert not list(run.checkpoints_path.glob("*.partial"))
        failed = [event for event in run.events() if event["kind"] == "checkpoint_failed"]
        lost = sum(event.get("lost_before", 0) for event in run.events())
        assert len(failed) + lost >= 2  # each was told, or counted as lost
        assert (run.result() or {})["status"] == "done"
