"""A truncated, a bit-flipped and a half-written checkpoint are each refused with a reason, and the
one before is used.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from shared_runs import SAERuns
from support import assert_same_bits, run_to_end


def step(run: Path, number: int) -> Path:
    return run / "checkpoints" / f"step-{number:010d}"


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-7])


def flip_a_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)


def test_each_damaged_checkpoint_is_refused_and_the_run_ends_the_same(
    tmp_path: Path, sae_runs: SAERuns
) -> None:
    """Of the checkpoints of a finished run, all but the one of step 50 are damaged. A process
    killed while writing also leaves a folder whose name says so, which goes.
    """
    unbroken = sae_runs.get("cpu:2")
    run = tmp_path / "run"
    shutil.copytree(unbroken.run, run)
    damaged = {
        step(run, 200): "half-written",
        step(run, 150): "truncated",
        step(run, 100): "checksum",
    }
    (step(run, 200) / "COMMIT.json").unlink()
    (run / "checkpoints" / "step-0000000201.partial").mkdir()
    truncate(step(run, 150) / "training.pt")
    flip_a_bit(step(run, 100) / "model.safetensors")

    resume = ["-m", "drumline", "train", "--resume", "run", "--gpus", "cpu:2"]
    resumed = run_to_end(resume, tmp_path).succeeded()

    refused = {Path(e["path"]): e["reason"] for e in resumed.events("checkpoint_refused")}
    assert refused.keys() == damaged.keys()
    for path, reason in damaged.items():
        assert reason in refused[path]
        assert f"{path.name}" in resumed.err.replace("\n", "")
    last_start = resumed.events("run_started")[-1]
    assert (last_start["step"], Path(last_start["resumed_from"])) == (50, step(run, 50))
    assert_same_bits(resumed.weights, unbroken.weights)
    assert not list(run.glob("checkpoints/*.partial"))
