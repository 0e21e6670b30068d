"""However a launcher ends, none of its ranks outlives it."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from support import Running, assert_all_gone, script, started, until

ENDLESS = {"config": {"steps": 1_000_000, "global_batch": 48, "data_workers": 1}}
HANGING = {
    "config": {"steps": 1_000_000, "global_batch": 48},
    "hang": {"rank": 1, "call": 5},
}


def descendants(running: Running) -> list[int]:
    """All that the launcher has started, ranks and their loaders."""
    children = psutil.Process(running.process.pid).children(recursive=True)
    return [child.pid for child in children]


def wait_until_hung(running: Running) -> None:
    """One rank never returns from its forward, the others wait for it in a collective."""
    folder = running.run.parent
    until("a rank that hangs", lambda: list(folder.glob("hangs-*")))


def test_kill_9_of_the_launcher_leaves_nothing(tmp_path: Path) -> None:
    with started(script("regression.py", "cpu:2", ENDLESS), tmp_path) as running:
        running.wait_for_step(3)
        pids = descendants(running)
        assert set(running.rank_pids(2).values()) < set(pids), "ranks, and loaders of theirs"
        running.signal(signal.SIGKILL)
        running.finish()
        assert_all_gone(pids)


@pytest.mark.parametrize("how", ["kill", "second interrupt"])
def test_ranks_inside_a_collective_end_with_the_launcher(tmp_path: Path, how: Any) -> None:
    with started(script("regression.py", "cpu:3", HANGING), tmp_path) as running:
        wait_until_hung(running)
        pids = descendants(running)
        assert set(running.rank_pids(3).values()) <= set(pids)
        if how == "kill":
            running.signal(signal.SIGKILL)
            running.finish()
        else:
            running.interrupt()
            running.wait_for(
                "the first interrupt", lambda events: events[-1]["kind"] == "stop_requested"
            )
            running.interrupt()
            ended = running.finish().ended_with(1)
            assert ended.result["status"] == "failed"
            assert ended.event("attempt_ended")["cause"] == "killed"
        assert_all_gone(pids)
