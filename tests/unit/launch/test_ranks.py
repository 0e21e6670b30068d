"""Processes that start before the agent is there, and wait to be told where the others are."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from drumline.errors import LaunchError
from drumline.launch.attempt import Attempt
from drumline.launch.ranks import Ranks

WAITING = """
import json, os, sys
from drumline.launch.ranks import await_rendezvous
await_rendezvous()
names = ("RANK", "WORLD_SIZE", "MASTER_PORT", "OURS")
told = {name: os.environ[name] for name in names} | {"input": sys.stdin.read()}
open(sys.argv[1] + os.environ["RANK"], "w").write(json.dumps(told))
"""
DEADLINE_S = 60


def test_what_starts_ranks_has_not_imported_torch() -> None:
    modules = "cli.launching, cli.check, jobs.local, launch.launcher, launch.preflight"
    imports = ", ".join(f"drumline.{name}" for name in modules.split(", "))
    program = f"import sys, {imports}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_rank_goes_on_with_what_it_is_told_and_the_launchers_own_variables(
    tmp_path: Path,
) -> None:
    ranks = Ranks(["-c", WAITING, f"{tmp_path}/told-"], 2, {"OURS": "kept"})
    for rank in range(2):
        told = {"RANK": str(rank), "MASTER_PORT": "4711", "OURS": "of the agent"}
        assert ranks.tell(rank, told).wait(DEADLINE_S) == 0
    found = [json.loads((tmp_path / f"told-{rank}").read_text()) for rank in range(2)]
    same = {"WORLD_SIZE": "2", "MASTER_PORT": "4711", "OURS": "kept", "input": ""}
    assert found == [{"RANK": "0", **same}, {"RANK": "1", **same}]


def test_one_that_is_never_told_ends_without_a_word(tmp_path: Path) -> None:
    ranks = Ranks(["-c", WAITING, f"{tmp_path}/told-"], 1, {})
    (process,) = ranks._processes
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(DEADLINE_S) == 1
    assert not list(tmp_path.iterdir())


def test_telling_one_that_has_ended_is_no_error() -> None:
    ranks = Ranks(["-c", "raise SystemExit(7)"], 1, {})
    ranks._processes[0].wait(DEADLINE_S)
    assert ranks.tell(0, {"PADDING": "x" * 2**20}).returncode == 7  # more than a pipe holds
    ranks.signal(signal.SIGTERM)
    ranks.kill()
    ranks.end()


def test_end_leaves_none_behind() -> None:
    ranks = Ranks(["-c", "import signal; signal.pause()"], 2, {})
    ranks.end()
    assert [process.returncode for process in ranks._processes] == [-signal.SIGKILL] * 2


def test_if_one_cannot_start_none_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    start, begun = Ranks._start, []

    def once(self: Ranks, arguments: list[str], rank: int) -> object:
        if rank == 1:
            monkeypatch.setattr(sys, "executable", "/nowhere/python")
        process = start(self, arguments, rank)
        begun.append(process)
        return process

    monkeypatch.setattr(Ranks, "_start", once)
    with pytest.raises(LaunchError, match="/nowhere/python"):
        Ranks(["-c", "import signal; signal.pause()"], 2, {})
    assert [process.returncode for process in begun] == [-signal.SIGKILL]


def test_an_attempt_names_a_rank_that_dies_before_it_is_told() -> None:
    program = (
        "import os, signal; os.environ['RANK'] == '1' and os.kill(os.getpid(), signal.SIGKILL);"
        "from drumline.launch.ranks import await_rendezvous; await_rendezvous(); signal.pause()"
    )
    ends = Attempt(["-c", program], 2, {}).run(lambda: None)
    assert [end.exit_code for end in ends] == [-signal.SIGKILL] * 2
    assert [end.ended_by_us for end in ends] == [True, False]


def test_a_signal_reaches_ranks_that_wait(tmp_path: Path) -> None:
    attempt = Attempt(["-c", WAITING, f"{tmp_path}/told-"], 2, {})
    attempt.signal(signal.SIGTERM)
    ends = attempt.run(lambda: None)
    assert {end.exit_code for end in ends} <= {-signal.SIGTERM, -signal.SIGKILL}
    assert not list(tmp_path.iterdir())
