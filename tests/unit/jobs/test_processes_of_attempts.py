"""All processes of an attempt are found and ended, however they were started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import psutil
import pytest

from drumline.config.environment import MARK
from drumline.jobs.processes import end_all, is_running, let_save, members, started_at

TREE = """
import os, signal, sys, time
def child(act):
    if os.fork() == 0:
        act()
        time.sleep(600)
        os._exit(0)
def escaped():
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork():
        os._exit(0)  # its child is an orphan
def unmarked():
    os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)"], {})
child(os.setsid)
child(escaped)
child(unmarked)
time.sleep(0.2)
print("ready", flush=True)
time.sleep(600)
"""
SAVES = """
import signal, sys, time
def save(*_):
    print("saved", flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(600)
"""


def marked(code: str, mark: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, MARK: mark},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.fixture
def tree() -> Iterator[subprocess.Popen[str]]:
    process = marked(TREE, "t/1")
    yield process
    for left in members("t/1"):
        with suppress(psutil.Error):
            left.kill()
    process.communicate()


def until(found: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not found():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_sessions_orphans_and_children_without_the_mark_are_members(
    tree: subprocess.Popen[str],
) -> None:
    until(lambda: len(members("t/1")) == 4)
    sessions = {os.getsid(process.pid) for process in members("t/1")}
    assert len(sessions) == 3
    assert members("t/2") == []
    assert members("t/1", besides={tree.pid}) != []
    assert tree.pid not in {process.pid for process in members("t/1", besides={tree.pid})}


def test_all_are_ended_but_those_to_be_kept(tree: subprocess.Popen[str]) -> None:
    until(lambda: len(members("t/1")) == 4)
    assert end_all("t/1", besides={tree.pid})
    assert [process.pid for process in members("t/1")] == [tree.pid]
    assert end_all("t/1")
    assert tree.wait(60) == -signal.SIGKILL
    assert end_all("t/1"), "nothing is left to end"


def test_what_is_ended_has_time_to_save() -> None:
    process = marked(SAVES, "s/1")
    let_save("s/1", within_s=60)
    out, _ = process.communicate(timeout=60)
    assert (out, process.returncode) == ("saved\n", 75)


def test_a_later_process_of_the_same_id_is_another() -> None:
    process = marked(SAVES, "p/1")
    started = started_at(process.pid)
    assert started is not None
    assert is_running(process.pid, started)
    assert not is_running(process.pid, started - 1)
    process.kill()
    until(lambda: not is_running(process.pid, started))  # not as a zombie either
    process.communicate()
    assert started_at(process.pid) is None
