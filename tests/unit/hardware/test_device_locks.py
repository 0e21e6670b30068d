"""Lock files of devices, between real processes."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from drumline.hardware import Machine
from drumline.hardware.device_locks import (
    DeviceLocked,
    DeviceLocks,
    Holder,
    held_on,
    holders,
    join_claim,
    lock_folder,
)

HOLDS = """
import sys
from pathlib import Path
from drumline.hardware.device_locks import DeviceLocks
with DeviceLocks(Path(sys.argv[1]), sys.argv[2:]) as locks:
    locks.tell(Path("/runs/theirs"))
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another(folder: Path, *uuids: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds some devices."""
    command = [sys.executable, "-c", HOLDS, str(folder), *uuids]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_who_holds_a_device_is_told_and_the_kernel_lets_go_of_the_dead(tmp_path: Path) -> None:
    with another(tmp_path, "GPU-a", "GPU-b") as process:
        found = holders(tmp_path, ["GPU-a", "GPU-b", "GPU-c"])
        assert set(found) == {"GPU-a", "GPU-b"}
        assert found["GPU-a"].pid == process.pid
        assert found["GPU-a"].run_directory == "/runs/theirs"
        assert str(found["GPU-a"]).startswith(f"process {process.pid} of ")
        with pytest.raises(DeviceLocked) as taken:
            DeviceLocks(tmp_path, ["GPU-b", "GPU-c"])
        assert taken.value.uuid == "GPU-b"
        assert taken.value.holder == found["GPU-b"]
        process.kill()
        process.wait()
    assert holders(tmp_path, ["GPU-a", "GPU-b"]) == {}
    DeviceLocks(tmp_path, ["GPU-a", "GPU-b"]).release()


def test_all_are_claimed_or_none(tmp_path: Path) -> None:
    with another(tmp_path, "GPU-b"):
        with pytest.raises(DeviceLocked):
            DeviceLocks(tmp_path, ["GPU-a", "GPU-b", "GPU-c"])
        assert set(holders(tmp_path, ["GPU-a", "GPU-b", "GPU-c"])) == {"GPU-b"}


def test_a_device_is_free_only_when_the_last_that_joined_is_gone(tmp_path: Path) -> None:
    locks = DeviceLocks(tmp_path, ["GPU-a"])
    goes_on, rank = os.pipe(), os.fork()
    if rank == 0:
        os.close(goes_on[1])
        locks.release()
        join_claim(map(str, [tmp_path / "GPU-a.lock"]))
        os.read(goes_on[0], 1)
        os._exit(0)
    os.close(goes_on[0])
    locks.release()
    try:
        # The child has the launcher's own descriptor until it has joined, so there is no gap.
        assert set(holders(tmp_path, ["GPU-a"])) == {"GPU-a"}
        with pytest.raises(DeviceLocked):
            DeviceLocks(tmp_path, ["GPU-a"])
    finally:
        os.close(goes_on[1])
        os.waitpid(rank, 0)
    DeviceLocks(tmp_path, ["GPU-a"]).release()


def test_one_who_only_looks_is_not_taken_for_a_holder(tmp_path: Path) -> None:
    DeviceLocks(tmp_path, ["GPU-a"]).release()
    with (tmp_path / "GPU-a.lock").open() as looks:
        fcntl.flock(looks, fcntl.LOCK_EX)  # as one does for microseconds
        assert holders(tmp_path, ["GPU-a"]) == {}
        fcntl.flock(looks, fcntl.LOCK_SH)
        assert set(holders(tmp_path, ["GPU-a"])) == {"GPU-a"}
    assert holders(tmp_path, ["GPU-a"]) == {}


def test_where_no_folder_can_be_made_nobody_holds_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("DRUMLINE_LOCK_FOLDER", str(tmp_path / "file" / "locks"))
    assert held_on(Machine.probe(simulate="1xH100")) == {}


def test_a_file_that_was_removed_under_its_holder_is_not_what_a_new_claim_locks(
    tmp_path: Path,
) -> None:
    path = tmp_path / "GPU-a.lock"
    DeviceLocks(tmp_path, ["GPU-a"]).release()
    path.unlink()
    with DeviceLocks(tmp_path, ["GPU-a"]):
        assert set(holders(tmp_path, ["GPU-a"])) == {"GPU-a"}


def test_a_link_in_the_place_of_a_lock_file_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("kept")
    (tmp_path / "GPU-a.lock").symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        DeviceLocks(tmp_path, ["GPU-a"])
    assert target.read_text() == "kept"


def test_other_users_can_lock_the_same_files(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        DeviceLocks(tmp_path, ["GPU-a"]).release()
    finally:
        os.umask(before)
    assert (tmp_path / "GPU-a.lock").stat().st_mode & 0o777 == 0o666


def test_nothing_is_made_for_no_device(tmp_path: Path) -> None:
    with DeviceLocks(tmp_path, []) as locks:
        assert locks.paths == []
    assert list(tmp_path.iterdir()) == []


def test_the_folder_is_the_one_named_or_shared_by_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRUMLINE_LOCK_FOLDER", str(tmp_path / "mine"))
    assert lock_folder() == tmp_path / "mine"
    assert (tmp_path / "mine").is_dir()
    monkeypatch.delenv("DRUMLINE_LOCK_FOLDER")
    shared = lock_folder()
    assert os.access(shared, os.W_OK)
    if shared.name == "drumline":
        assert shared.stat().st_mode & 0o7777 == 0o1777


def test_a_holder_that_told_nothing_is_still_one() -> None:
    assert str(Holder()) == "another process"
