"""A device stays held until the last process that may use it is gone, not only its launcher."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from support import PROGRAMS, assert_all_gone, started, until

from drumline.hardware.device_locks import DeviceLocks, holders

DEVICE = "GPU-held"


def test_a_device_is_free_when_launcher_ranks_and_what_they_left_behind_are_gone(
    tmp_path: Path,
) -> None:
    locks = tmp_path / "locks"
    locks.mkdir()
    command = [PROGRAMS / "holding.py", locks, tmp_path / "run"]
    with started(command, tmp_path, PYTHONPATH=os.pathsep.join([str(PROGRAMS), *_path()])) as run:
        ranks = run.rank_pids(1)
        until("an escaped process", (tmp_path / "run" / "escaped").is_file)
        escaped = int((tmp_path / "run" / "escaped").read_text())
        try:
            assert holders(locks, [DEVICE])[DEVICE].pid == run.process.pid
            run.signal(signal.SIGKILL)
            run.finish()
            assert_all_gone(list(ranks.values()))
            assert set(holders(locks, [DEVICE])) == {DEVICE}
        finally:
            os.kill(escaped, signal.SIGKILL)
    assert_all_gone([escaped])
    DeviceLocks(locks, [DEVICE]).release()


def _path() -> list[str]:
    return [path for path in [os.environ.get("PYTHONPATH", "")] if path]
