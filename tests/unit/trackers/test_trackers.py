import json
import math
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drumline.config import RunConfig, parse_config
from drumline.errors import BadInput, MissingPackage
from drumline.events import EventLog
from drumline.run_directory import RunDirectory
from drumline.trackers import open_tracker, require_trackers
from drumline.trackers.scalars import scalars


def config(**logging: Any) -> RunConfig:
    return parse_config({"name": "tiny", "steps": 30, "logging": logging})


def made_run(path: Path) -> RunDirectory:
    """A run with 30 steps, a loss that is not finite, and a restart from step 10."""
    run = RunDirectory.create(path / "tiny-1")
    log = EventLog(run.events_path, rank=0)
    log.emit("run_started", name="tiny")
    for step, loss in ((10, 0.1), (20, 7.0), (30, math.nan), (20, 0.3), (30, 0.2)):
        log.emit("step", step=step, loss=loss, lr=1e-3, metrics={"fvu": loss / 4}, skipped=False)
        log.emit("evaluation", step=step, metrics={"l0": 32})
    log.emit("run_ended", status="done", metrics={"fvu": 0.05})
    return run


def test_tensorboard_reads_back_what_the_events_say(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = made_run(tmp_path)
    events = run.events()
    tracker = open_tracker("tensorboard", run, config())
    for event in events:
        tracker.feed([event])
    tracker.close()
    tracker.close()
    read = EventAccumulator(str(run.path / "tensorboard"))
    read.Reload()
    assert set(read.Tags()["scalars"]) == {
        "train/loss",
        "train/lr",
        "train/fvu",
        "evaluation/l0",
    }
    # The steps that the restart undid are gone; the rest is as written, in TensorBoard's float32.
    steps = [event for event in events if event["kind"] == "step"]
    kept = [steps[0], *steps[3:]]
    points = read.Scalars("train/loss")
    assert [point.step for point in points] == [10, 20, 30]
    assert [np.float32(point.value) for point in points] == [np.float32(e["loss"]) for e in kept]
    assert [point.wall_time for point in points] == [event["t"] for event in kept]


def test_numbers_come_from_steps_and_evaluations_only(tmp_path: Path) -> None:
    step = {"kind": "step", "step": 1, "loss": "nan", "lr": 0.5, "skipped": True}
    step |= {"metrics": {"fvu": "inf", "note": "text"}, "rank_samples_per_s": [3.0, 4]}
    found = scalars(step)
    assert math.isnan(found.pop("train/loss"))
    assert found == {
        "train/lr": 0.5,
        "train/fvu": math.inf,
        "rank/0/samples_per_s": 3.0,
        "rank/1/samples_per_s": 4.0,
    }
    assert scalars({"kind": "checkpoint", "step": 3, "bytes": 9}) == {}


TRACK = """
import sys
from pathlib import Path
from drumline.config import parse_config
from drumline.run_directory import RunDirectory
from drumline.trackers import open_tracker

run = RunDirectory(Path(sys.argv[1]))
tracker = open_tracker("wandb", run, parse_config({"steps": 30}))
tracker.feed(run.events())
tracker.close()
tracker.close()
"""


def test_wandb_offline_writes_below_the_run_directory_and_calls_nobody(tmp_path: Path) -> None:
    run = made_run(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        # All of W&B's processes would go out through this proxy.
        proxy.setblocking(False)
        address = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy")
        environment = {**os.environ, **dict.fromkeys(names, address), "no_proxy": "127.0.0.1"}
        command = [sys.executable, "-c", TRACK, str(run.path)]
        subprocess.run(command, env=environment, check=True, timeout=120)
        with pytest.raises(BlockingIOError):
            proxy.accept()
    (written,) = (run.path / "wandb").glob("offline-run-*/run-*.wandb")
    logged = wandb_history(written)
    steps = [event for event in run.events() if event["kind"] == "step"]
    rows = [row for row in logged if "train/loss" in row]
    assert [row["step"] for row in rows] == [event["step"] for event in steps]
    losses = [float(event["loss"]) for event in steps]
    assert [float(row["train/loss"]) for row in rows] == pytest.approx(losses, 0, 0, nan_ok=True)
    assert [row["evaluation/l0"] for row in logged if "evaluation/l0" in row] == [32.0] * 5


def wandb_history(path: Path) -> list[dict[str, Any]]:
    """The rows of history in a W&B file, by its own message types."""
    from wandb.proto import wandb_internal_pb2

    rows = []
    for data in leveldb_records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            rows.append(
                {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json)
                    for item in record.history.item
                }
            )
    return rows


def leveldb_records(data: bytes) -> Iterator[bytes]:
    """Records of a LevelDB log: blocks of 32 KiB, each piece with checksum, length and type."""
    block, header, place, record = 32 * 1024, 7, 7, b""
    while place + header <= len(data):
        if block - place % block < header:
            place += block - place % block
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        record += data[place + header : place + header + length]
        place += header + length
        if kind in (1, 4):  # whole, or the last piece
            yield record
            record = b""


def test_a_missing_package_is_named_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("drumline.trackers.tracker.find_spec", lambda name: None)
    with pytest.raises(MissingPackage, match=r"drumline\[trackers\]"):
        require_trackers(["tensorboard"])


def test_an_unknown_tracker_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="mlflow"):
        open_tracker("mlflow", RunDirectory(tmp_path), config())
