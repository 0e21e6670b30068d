"""What cannot be used is refused with one message that names it, exit code 2 and no traceback; and
before any rank is started, where it can be seen by then.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from shared_runs import HELD_OUT, ROWS, SAERuns
from support import Finished, run_to_end, started, train, write_config

from drumline.tasks.sae.activations import Manifest, ShardRecord
from drumline.tasks.sae.activations.manifest import MANIFEST_NAME, TENSOR_NAME, file_sha256

Refused = Callable[..., Finished]


def in_one_line(text: str) -> str:
    """Terminal output without its line breaks."""
    return " ".join(text.split())


def assert_refused(ended: Finished, *said: str) -> None:
    message = in_one_line(ended.ended_with(2).err)
    for words in said:
        assert words in message, message
    assert "Traceback" not in ended.err


@pytest.fixture
def refused(tmp_path: Path, sae_runs: SAERuns) -> Refused:
    """Runs `drumline train` on a config with some keys set; nothing may be started or written."""

    def run(*overrides: str, devices: str = "cpu:2", **keys: Any) -> Finished:
        config = write_config(tmp_path / "config.yaml", sae_runs.config(**keys))
        arguments = train(config, devices, *overrides)
        ended = run_to_end(arguments, tmp_path, CUDA_VISIBLE_DEVICES="")
        assert not ended.run.exists(), "a run directory was made"
        return ended

    return run


def test_a_missing_config(tmp_path: Path) -> None:
    ended = run_to_end(train(Path("absent.yaml"), "cpu:2"), tmp_path)
    assert_refused(ended, "There is no file absent.yaml.")
    assert not ended.run.exists()


def test_missing_activations(refused: Refused) -> None:
    assert_refused(
        refused("task.activations=absent/rows"),
        "There are no activations at absent/rows: no such file or folder.",
        "drumline activations extract",
    )


def test_targets_with_another_number_of_rows(refused: Refused, tmp_path: Path) -> None:
    np.save(tmp_path / "targets.npy", np.zeros((ROWS - 1, 8)))
    ended = refused("task.targets=targets.npy", "task.resampling.every_steps=null")
    assert_refused(ended, f"has {ROWS} rows, but targets.npy has {ROWS - 1}.")


def test_files_of_one_set_with_other_widths(refused: Refused, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    np.save(folder / "a.npy", np.zeros((700, 16)))
    np.save(folder / "b.npy", np.zeros((700, 12)))
    ended = refused("task.activations=set")
    assert_refused(ended, "a.npy holds rows of width 16", "b.npy holds rows of width 12")


def test_activations_that_are_no_matrix(refused: Refused, tmp_path: Path) -> None:
    np.save(tmp_path / "cube.npy", np.zeros((10, 4, 16)))
    assert_refused(refused("task.activations=cube.npy"), "cube.npy holds float64 of shape [10, 4")


def test_more_latents_kept_than_there_are(refused: Refused) -> None:
    """The number of latents follows from the width of the activations."""
    ended = refused("task.latents=null", "task.expansion=0.125")
    assert_refused(ended, "k is 4, but there are only 2 latents")


def test_an_unknown_key_names_the_nearest(refused: Refused) -> None:
    ended = refused("optimizer.learning_rat=1", "task.deadafter_samples=5")
    assert_refused(
        ended,
        "optimizer.learning_rat = 1: unknown key.",
        "task.deadafter_samples = 5: unknown key. Did you mean dead_after_samples?",
    )


def test_a_negative_size(refused: Refused) -> None:
    ended = refused("global_batch=-96", "task.k=0")
    assert_refused(ended, "global_batch = -96:", "task.k = 0:", "Give a number above 0.")


def test_more_devices_than_there_are(refused: Refused) -> None:
    assert_refused(
        refused(devices="3"), "3 GPUs were asked for, and this machine has none.", "cpu:3"
    )


def test_a_global_batch_too_small_for_the_devices(refused: Refused) -> None:
    ended = refused("global_batch=3", devices="cpu:4")
    assert_refused(ended, "global_batch 3 cannot be shared by 4 devices", "at most 3 devices")


def test_too_few_groups_for_the_devices(refused: Refused) -> None:
    task = {"architecture": "batchtopk", "batchtopk_group": 48}
    ended = refused(devices="cpu:3", task=task)
    assert_refused(ended, "global_batch 96 in groups of 48 cannot be shared by 3 devices")


def test_a_run_directory_that_another_launch_holds(tmp_path: Path, sae_runs: SAERuns) -> None:
    config = write_config(tmp_path / "config.yaml", sae_runs.config())
    with started(train(config, "cpu:1", "steps=1000000"), tmp_path / "first") as first:
        first.wait_for("the attempt", lambda events: events)
        second = train(config, "cpu:1", run=str(first.run))
        ended = run_to_end(second, tmp_path / "second")
        assert_refused(ended, f"is in use by process {first.process.pid}.")
        assert len(first.events("attempt_started")) == 1


def test_nan_in_a_npy_names_file_and_row(
    tmp_path: Path, activations: Path, sae_runs: SAERuns
) -> None:
    """The bad row comes up in the middle of the training, on one of two ranks."""
    row = ROWS - HELD_OUT - 1
    rows = np.load(activations)
    rows[row, 5] = np.nan
    np.save(tmp_path / "holed.npy", rows)
    keys = {"task": {"activations": "holed.npy", "bias_samples": 8}, "logging": {}}
    config = write_config(tmp_path / "config.yaml", sae_runs.config(**keys))
    ended = run_to_end(train(config, "cpu:2"), tmp_path)
    assert_refused(ended, f"Row {row} of holed.npy holds NaN or infinity")
    assert len(ended.events("attempt_started")) == 1, "it was not tried again"
    failure = next(e for e in ended.events("rank_failed") if e["code"] == "bad_data")
    assert failure["values"]["row"] == row


def test_nan_in_an_extracted_set_names_shard_and_row(tmp_path: Path, sae_runs: SAERuns) -> None:
    folder = extracted(tmp_path / "set", rows=(600, 600), bad=(1, 37))
    keys = {"task": {"activations": str(folder), "evaluation": {"samples": 100}}}
    config = write_config(tmp_path / "config.yaml", sae_runs.config(**keys))
    ended = run_to_end(train(config, "cpu:1"), tmp_path)
    assert_refused(ended, f"Row 37 of {folder}/shard-1.safetensors holds NaN or infinity")


def extracted(folder: Path, rows: tuple[int, ...], bad: tuple[int, int]) -> Path:
    """A folder as `drumline activations extract` makes it, with one bad row in a shard."""
    folder.mkdir()
    random = torch.Generator().manual_seed(8)
    shards = []
    for number, count in enumerate(rows):
        tensor = torch.randn(count, 16, generator=random)
        if number == bad[0]:
            tensor[bad[1], 3] = torch.nan
        file = folder / f"shard-{number}.safetensors"
        save_file({TENSOR_NAME: tensor}, file)
        record = ShardRecord(
            file=file.name, rows=count, size_bytes=file.stat().st_size, sha256=file_sha256(file)
        )
        shards.append(record)
    manifest = Manifest(
        **{"model": "none", "model_fingerprint": "0", "layer": 0, "hook_point": "none"},
        **{"dtype": "float32", "width": 16, "count": sum(rows), "length": 100},
        **{"drop_first": False, "separator_token": None, "text": (), "text_sha256": "0"},
        outlier_ratio=None,
        options={},
        shards=tuple(shards),
    )
    (folder / MANIFEST_NAME).write_text(manifest.model_dump_json())
    return folder
