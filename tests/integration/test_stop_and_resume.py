"""A run that is asked to stop ends at a step boundary with code 75, and goes on where it was, on
any number of processes.
"""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

from shared_runs import SAERuns
from support import (
    alone,
    largest_difference,
    run_to_end,
    script,
    started,
    train,
    weights_of,
    write_config,
)

SAMPLES, STEPS, GLOBAL_BATCH = 1000, 60, 48
TRAINING = {"steps": STEPS, "global_batch": GLOBAL_BATCH, "precision": "fp64"}
RESUME_ME = 75


def seen(folder: Path, world_size: int, attempt: int) -> list[int]:
    """Sample ids of one attempt of a program, in the order of the global batches."""
    files = [folder / "ids" / f"{world_size}-{attempt}-{rank}.txt" for rank in range(world_size)]
    ranks = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    assert len({len(steps) for steps in ranks}) == 1, "every rank took every step"
    return list(chain.from_iterable(chain.from_iterable(zip(*ranks, strict=True))))


def test_stopped_on_four_and_resumed_on_three_and_on_one_sees_every_sample_once_in_order(
    tmp_path: Path,
) -> None:
    """A signal that comes in while a step is taken is voted on with the next, and ends that one:
    those of steps 36 and 49 stop the run after 37 and 50. Epochs end within steps 21 and 42.
    """
    unbroken = tmp_path / "unbroken"
    run_to_end(alone("regression.py", {"config": {**TRAINING, "run_dir": "run"}}), unbroken)

    folder = tmp_path / "stopped"
    stop = {"terminate": {"rank": 2, "call": 35}}
    first = run_to_end(script("regression.py", "cpu:4", {"config": TRAINING, **stop}), folder)
    first.ended_with(RESUME_ME)
    assert (first.result["status"], first.result["step"]) == ("stopped", 37)
    assert [e["signal"] for e in first.events("stop_requested")] == ["SIGTERM"]

    stop = {"terminate": {"rank": 0, "call": 11, "signal": "SIGUSR1", "attempt": 1}}
    second = run_to_end(script("regression.py", "cpu:3", {"config": TRAINING, **stop}), folder)
    second.ended_with(RESUME_ME)
    assert second.result["step"] == 50
    third = run_to_end(alone("regression.py", {"config": {**TRAINING, "run_dir": "run"}}), folder)
    assert third.result["status"] == "done"

    parts = [seen(folder, 4, 0), seen(folder, 3, 1), seen(folder, 1, 0)]
    assert list(chain(*parts)) == seen(unbroken, 1, 0)
    assert len(parts[0]) == samples_in(37)
    assert sorted(list(chain(*parts))[:SAMPLES]) == list(range(SAMPLES))


def samples_in(steps: int) -> int:
    """Samples in so many steps; the 21st of each epoch is short."""
    epochs, rest = divmod(steps, 21)
    return epochs * SAMPLES + rest * GLOBAL_BATCH


def test_ctrl_c_saves_and_the_run_ends_on_another_number(tmp_path: Path, sae_runs: SAERuns) -> None:
    config = write_config(tmp_path / "config.yaml", sae_runs.config())
    with started(train(config, "cpu:2"), tmp_path) as running:
        running.wait_for_step(5)
        running.interrupt()
        stopped = running.finish().ended_with(RESUME_ME)
    assert "Go on with: drumline train --resume" in stopped.out
    step = stopped.result["step"]
    assert 5 < step < 200
    assert stopped.events("checkpoint")[-1]["step"] == step

    resume = ["-m", "drumline", "train", "--resume", "run", "--gpus", "cpu:1"]
    resumed = run_to_end(resume, tmp_path).succeeded()
    assert resumed.events("run_started")[-1]["step"] == step
    assert largest_difference(weights_of(tmp_path / "run"), sae_runs.get("cpu:1").weights) <= 1e-9
