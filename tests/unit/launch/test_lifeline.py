"""A child that is tied to its parent ends with it, however that ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

import pytest

from drumline.launch.lifeline import die_with_parent

PARENT = """
import subprocess, sys
import os
subprocess.run([sys.executable, "-c", *sys.argv[1:], str(os.getpid())])
"""
CHILD = """
import os, runpy, signal, sys
die_with_parent = runpy.run_path(sys.argv[1])["die_with_parent"]
signal.signal(signal.SIGTERM, signal.SIG_IGN)
die_with_parent(int(sys.argv[2]))
print(os.getpid(), flush=True)
signal.pause()
"""
PATIENCE_S = 30
MODULE = die_with_parent.__code__.co_filename
"""Read by itself, as its package also imports torch."""


def ends(pidfd: int) -> bool:
    """Whether the process ends within the test's patience; waits for just that."""
    ready, _, _ = select.select([pidfd], [], [], PATIENCE_S)
    return bool(ready)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_child_ends_when_its_parent_is_killed(number: signal.Signals) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, CHILD, MODULE], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    pidfd = os.pidfd_open(child)
    try:
        ready, _, _ = select.select([pidfd], [], [], 0)
        assert not ready  # alive as long as its parent is
        parent.send_signal(number)
        parent.wait()
        assert ends(pidfd)
    finally:
        os.close(pidfd)
        parent.stdout.close()


def test_a_parent_that_is_gone_already_ends_the_child_at_once() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    child = subprocess.run(
        [sys.executable, "-c", CHILD, MODULE, str(gone.pid)],
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL
    assert child.stdout == b""


def test_elsewhere_than_on_linux_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    die_with_parent(0)  # 0 is nobody's parent here: on Linux this would end the tests
