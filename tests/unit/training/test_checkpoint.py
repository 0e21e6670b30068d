"""Checkpoints: whole or absent, whatever happens to the process, the disk or the files."""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_stores import flip, linear, newest_good, save, steps, store_of
from small_disk import fill, small_disk
from torch import nn

from drumline.errors import CheckpointError
from drumline.training.checkpoint import COMMIT, STATE, WEIGHTS, CheckpointStore

FORKER = """
import os, sys
from pathlib import Path
import torch
from torch import nn
from drumline.config import CheckpointConfig
from drumline.training.checkpoint import CheckpointStore

torch.set_num_threads(1)
folder, over_and_over = Path(sys.argv[1]), sys.argv[2] == "same"

def save_for_ever():
    model = nn.Linear(300, 300)
    store = CheckpointStore(folder, CheckpointConfig(keep_last=1))
    step = max((found.step for found in store.all()), default=0)
    while True:
        step = max(step, 1) if over_and_over else step + 1
        nn.init.constant_(model.weight, step)
        store.save(step, model, {"step": step, "more": torch.full((50_000,), float(step))}, {})
        os.write(1, b"%d\\n" % step)

for _ in sys.stdin.buffer:
    pid = os.fork()
    if pid == 0:
        save_for_ever()
    os.write(1, b"pid %d\\n" % pid)
    os.waitpid(pid, 0)
    os.write(1, b"dead\\n")
"""
"""Imports torch once; for each line of input a new process saves until it is killed."""


class Tied(nn.Module):
    """Two names for one weight, as in language models, and buffers of several dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("count", torch.tensor([2**40, -3], dtype=torch.int64))
        self.register_buffer("mean", torch.tensor([1 / 3], dtype=torch.float64))


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    store = store_of(tmp_path / "checkpoints")
    model = nn.Linear(3, 2).double()
    state = {
        "optimizer": {"state": {0: {"exp_avg": torch.tensor([1 / 3], dtype=torch.float64)}}},
        "count": torch.tensor([2**62]),
        "plain": [1, 2.5, "text", None, True, (1, 2)],
    }
    saved = store.save(7, model, state, {"loss": 0.5})
    (found,) = store.all()
    assert found == saved
    assert (found.step, found.metrics) == (7, {"loss": 0.5})
    found.verify()
    other = nn.Linear(3, 2).double()
    found.load_weights(other)
    assert torch.equal(other.weight, model.weight)
    assert other.weight.dtype == torch.float64
    read = found.load_state()
    assert read["plain"] == state["plain"]
    assert read["count"].item() == 2**62
    average = read["optimizer"]["state"][0]["exp_avg"]
    assert average.dtype == torch.float64
    assert average.item() == 1 / 3
    assert sorted(path.name for path in found.path.iterdir()) == sorted([WEIGHTS, STATE, COMMIT])


def test_tied_weights_stay_tied_and_buffers_keep_their_values(tmp_path: Path) -> None:
    model, other = Tied(), Tied()
    saved = store_of(tmp_path).save(1, model, {}, {})
    other.count.zero_()
    other.mean.zero_()
    saved.load_weights(other)
    assert torch.equal(other.head.weight, model.embedding.weight)
    assert other.head.weight is other.embedding.weight
    assert other.count.tolist() == [2**40, -3]
    assert other.mean.item() == 1 / 3


def test_weights_are_plain_safetensors(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    model = linear(2.5)
    saved = store_of(tmp_path).save(1, model, {}, {})
    assert torch.equal(load_file(saved.weights_path)["weight"], model.weight)


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    saved = save(store_of(tmp_path), 1)
    with pytest.raises(CheckpointError, match="does not fit the model"):
        saved.load_weights(linear(0, size=5))
    with pytest.raises(CheckpointError, match="does not fit the model"):
        saved.load_weights(nn.Embedding(4, 4))


class Bomb:
    """Pickled, it writes a file when it is read by a reader that runs pickles."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (os.system, (f"touch {self.path}",))


def test_code_in_the_state_is_refused_and_not_run(tmp_path: Path) -> None:
    store, proof = store_of(tmp_path / "c"), tmp_path / "it ran".replace(" ", "-")
    saved = store.save(1, linear(1), {"bomb": Bomb(proof)}, {})
    saved.verify()  # its checksums are right: only the reader stands between
    with pytest.raises(CheckpointError, match="none of it was run"):
        saved.load_state()
    assert not proof.exists()
    torch.load(saved.path / STATE, weights_only=False)
    assert proof.exists()  # the bomb does work


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def rewrite(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda folder: truncate(folder / WEIGHTS), f"{WEIGHTS} is truncated"),
        (lambda folder: truncate(folder / STATE), f"{STATE} is truncated"),
        (lambda folder: (folder / STATE).write_bytes(b""), f"{STATE} is truncated: 0 bytes"),
        (lambda folder: flip(folder / WEIGHTS), f"{WEIGHTS} is damaged"),
        (lambda folder: flip(folder / STATE), f"{STATE} is damaged"),
        (lambda folder: (folder / WEIGHTS).unlink(), f"{WEIGHTS} is missing"),
        (lambda folder: (folder / COMMIT).unlink(), "half-written"),
        (lambda folder: truncate(folder / COMMIT), "damaged commit marker"),
        (lambda folder: (folder / COMMIT).write_text("[]"), "damaged commit marker"),
        (lambda folder: (folder / COMMIT).write_bytes(b"\xff"), "damaged commit marker"),
        (lambda folder: rewrite(folder / COMMIT, '"step": 2', '"step": 3'), "damaged commit"),
        (lambda folder: rewrite(folder / COMMIT, '"bytes"', '"cytes"'), "damaged commit"),
        (lambda folder: rewrite(folder / COMMIT, "0.25", "0.05"), "damaged commit"),
        (lambda folder: folder.rename(f"{folder}.partial"), "half-written"),
        (lambda folder: (shutil.rmtree(folder), folder.write_text("")), "damaged commit marker"),
    ],
)
def test_a_damaged_checkpoint_is_refused_with_the_reason_and_the_one_before_is_used(
    tmp_path: Path, damage: Callable[[Path], object], reason: str
) -> None:
    store = store_of(tmp_path)
    save(store, 1)
    damage(save(store, 2, loss=0.25).path)
    (refused, nothing, why), (_, found, no_reason) = store.examine()
    assert refused.name.startswith("step-0000000002")
    assert nothing is None
    assert reason in why
    assert no_reason == ""
    assert found is not None
    assert found.step == 1
    assert found.load_state() == {"step": 1}


def test_every_single_bit_of_a_marker_is_guarded(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    path = save(store, 1, loss=0.5).path / COMMIT
    whole = path.read_bytes()
    for place in range(0, len(whole) * 8, 11):
        data = bytearray(whole)
        data[place // 8] ^= 1 << place % 8
        path.write_bytes(data)
        if json.loads(whole) == _json(bytes(data)):
            continue  # white space
        assert newest_good(store) is None, data[max(0, place // 8 - 20) : place // 8 + 20]


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None


def test_a_format_of_another_version_is_refused_by_its_number(tmp_path: Path) -> None:
    from drumline.training import checkpoint

    store = store_of(tmp_path)
    path = save(store, 1).path / COMMIT
    marker = json.loads(path.read_text())
    del marker["seal"]
    marker["format"] = 9
    path.write_text(json.dumps({**marker, "seal": checkpoint._seal(marker)}))
    ((_, found, reason),) = store.examine()
    assert found is None
    assert "format 9" in reason


def test_what_cannot_be_saved_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    save(store, 1)
    with pytest.raises(CheckpointError, match="step 2 could not be written"):
        store.save(2, linear(2), {}, {"loss": object()})  # type: ignore[dict-item]
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000000001"]


def test_a_disk_full_at_any_point_is_an_error_and_earlier_checkpoints_stay_whole(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "disk", 512) as disk:
        store = store_of(disk)
        store.save(1, linear(1), {"step": 1}, {})
        large, state = linear(2, size=100), {"step": 2, "more": torch.zeros(20_000)}
        pages, failures = 0, 0
        while steps(store) == [1]:
            filler = fill(disk)
            os.truncate(filler, filler.stat().st_size - pages * 4096)
            pages += 1
            try:
                store.save(2, large, state, {})
            except CheckpointError as error:
                failures += 1
                assert "step 2 could not be written" in error.message
                assert "space" in error.remedy
                assert sorted(path.name for path in disk.iterdir()) == [
                    "filler",
                    "step-0000000001",
                ]
                assert steps(store) == [1]
            store.all()[-1].verify()
            filler.unlink()
        assert failures > (40_000 + 80_000) // 4096  # every page of weights and state was missing
        store.all()[0].verify()


def test_tidy_finishes_what_was_whole_and_removes_what_was_not(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    save(store, 1)
    save(store, 2).path.rename(tmp_path / "step-0000000002.partial")
    save(store, 3).path.rename(tmp_path / "step-0000000003.partial")
    truncate(tmp_path / "step-0000000003.partial" / STATE)
    (tmp_path / "step-0000000004.partial").mkdir()
    (tmp_path / "old-step-0000000001").mkdir()
    store.tidy()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-0000000001",
        "step-0000000002",
    ]
    assert [checkpoint is not None for _, checkpoint, _ in store.examine()] == [True, True]


@pytest.mark.parametrize("which", ["next", "same"])
def test_kill_9_while_saving_leaves_a_whole_checkpoint(tmp_path: Path, which: str) -> None:
    """With keep_last 1, so that each save also removes one; at random moments, many rounds."""
    folder = tmp_path / "c"
    moments, known, hits = random.Random(which), 0, 0
    forker = subprocess.Popen(
        [sys.executable, "-c", FORKER, str(folder), which],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    for _ in range(25):
        known = max(known, save_until_killed(forker, moments))
        hits += bool(list(folder.glob("*.partial")) or list(folder.glob("old-*")))
        store = CheckpointStore(folder)
        store.tidy()
        found = newest_good(store)
        assert found is not None, sorted(path.name for path in folder.iterdir())
        assert known <= found.step <= known + 1
        model = nn.Linear(300, 300)
        found.load_weights(model)
        state = found.load_state()
        assert model.weight.unique().item() == found.step == state["step"]
        assert state["more"].unique().item() == found.step
        assert not list(folder.glob("*.partial"))
        assert not list(folder.glob("old-*"))
        known = found.step
    forker.communicate()
    assert forker.returncode == 0
    assert hits > 5  # the kills did come in the middle


def save_until_killed(forker: subprocess.Popen[bytes], moments: random.Random) -> int:
    """Let a new process save, kill it at a random moment after its first checkpoint; the last
    step it told.
    """
    assert forker.stdin is not None
    assert forker.stdout is not None
    forker.stdin.write(b"\n")
    forker.stdin.flush()
    pid, step = 0, 0
    while not (pid and step):
        first, *more = forker.stdout.readline().split()
        pid, step = (int(more[0]), step) if first == b"pid" else (pid, int(first))
    select.select([], [], [], moments.uniform(0, 0.03))
    os.kill(pid, signal.SIGKILL)
    while (line := forker.stdout.readline()) != b"dead\n":
        step = int(line)
    return step
