"""Running examples and scripts as a user does: real processes, from the repository's root."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def command_environment(**more: str) -> dict[str, str]:
    """This environment, with this package, its interpreter and one thread a process."""
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHON": sys.executable,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        **more,
    }


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_command(folder: Path, *words: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder to its end; its output is text."""
    return subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env=command_environment(**more),
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


def python(folder: Path, *words: str | Path, **more: str) -> str:
    """Standard output of a Python command that must succeed."""
    done = run_command(folder, sys.executable, *words, **more)
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-2000:]
    return done.stdout


def drumline(folder: Path, *words: str | Path) -> str:
    """Standard output of a drumline command that must succeed."""
    return python(folder, "-m", "drumline", *words)
