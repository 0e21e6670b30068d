"""Places that cannot be written: a disk that fills up, and a run directory that cannot be made."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from shared_runs import SAERuns
from support import run_to_end, script, train, write_config


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB, mounted in a place of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def test_training_goes_on_when_the_disk_is_full(small_disk: Path) -> None:
    """A checkpoint is 1.2 MB: the first fits, and there is no room for a second beside it."""
    config = {"steps": 12, "global_batch": 16, "checkpoint": {"every_steps": 5}}
    arguments = script("large_state.py", "cpu:2", {"config": config})
    ended = run_to_end(arguments, small_disk).succeeded()
    assert ended.result["status"] == "done"
    assert list(ended.losses) == list(range(1, 13))
    assert [e["step"] for e in ended.events("checkpoint")] == [5]
    failed = ended.events("checkpoint_failed")
    assert [e["step"] for e in failed] == [10, 12]
    for event in failed:
        assert "No space left on device" in event["reason"]
    assert [path.name for path in (ended.run / "checkpoints").iterdir()] == ["step-0000000005"]
    assert ended.weights["0.weight"].shape == (200, 250)
    assert "Checkpoint at step 10 failed" in ended.err


def test_a_run_directory_that_cannot_be_made_is_one_clear_line(
    tmp_path: Path, sae_runs: SAERuns
) -> None:
    (tmp_path / "taken").write_text("a file where the folder should be")
    config = write_config(tmp_path / "config.yaml", sae_runs.config())
    ended = run_to_end(train(config, "cpu:2", run="taken/run"), tmp_path).ended_with(2)
    assert "The run directory taken/run cannot be written: Not a directory." in ended.err
    assert "Traceback" not in ended.err
    assert (tmp_path / "taken").is_file()
