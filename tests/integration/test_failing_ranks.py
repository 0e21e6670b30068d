"""A rank that dies or hangs: all start again from the last checkpoint, and no bit is different.

Which rank and when is drawn anew for every run of the tests; the seed is printed on failure.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
from pathlib import Path

from shared_runs import REGRESSION, SAERuns
from support import Finished, assert_same_bits, run_to_end, script, started, train, write_config


def drawn() -> random.Random:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    return random.Random(seed)


def test_a_rank_killed_at_any_step_costs_no_bit(
    tmp_path: Path, undisturbed_regression: Finished
) -> None:
    chance = drawn()
    kill = {"rank": chance.randrange(3), "call": chance.randrange(1, 60)}
    options = {"config": REGRESSION, "kill": kill}
    killed = run_to_end(script("regression.py", "cpu:3", options), tmp_path).succeeded()
    assert_same_bits(killed.weights, undisturbed_regression.weights)
    assert killed.losses == undisturbed_regression.losses
    first, second = killed.events("attempt_ended")
    assert (first["cause"], first["action"]) == ("killed", "restart")
    assert f"rank {kill['rank']} " in first["message"]
    assert second["cause"] == "done"
    assert killed.result["attempts"] == 2
    resumed = killed.events("run_started")[-1]
    assert resumed["step"] == kill["call"] // 10 * 10


def test_a_rank_killed_from_outside_costs_no_bit(tmp_path: Path, sae_runs: SAERuns) -> None:
    """The SAE, with its counts of silence and its resampling, in float64."""
    chance = drawn()
    config = write_config(tmp_path / "config.yaml", sae_runs.config())
    with started(train(config, "cpu:3"), tmp_path) as running:
        running.wait_for_step(chance.randrange(1, 150))
        os.kill(running.rank_pids(3)[chance.randrange(3)], signal.SIGKILL)
        killed = running.finish().succeeded()
    assert [e["cause"] for e in killed.events("attempt_ended")] == ["killed", "done"]
    assert_same_bits(killed.weights, sae_runs.get("cpu:3").weights)
    assert killed.losses == sae_runs.get("cpu:3").losses


def test_a_stopped_rank_is_named_and_the_run_goes_on(tmp_path: Path, sae_runs: SAERuns) -> None:
    """SIGSTOP stands for a rank that hangs: it lives, and does not come to the collective."""
    bounds = {"timeout_s": 8, "control_timeout_s": 8}
    config = write_config(tmp_path / "config.yaml", sae_runs.config(distributed=bounds))
    with started(train(config, "cpu:3"), tmp_path) as running:
        running.wait_for_step(55)
        pids = running.rank_pids(3)
        attempt = running.events("rank_started")[-1]["attempt"]
        os.kill(pids[1], signal.SIGSTOP)
        hung = running.finish().succeeded()
    failures = [e for e in hung.events("rank_failed") if e["attempt"] == attempt]
    assert failures
    for failure in failures:
        assert failure["rank"] != 1
        assert failure["message"].startswith("Rank 1 did not come")
    ended = [e for e in hung.events("attempt_ended") if e["attempt"] == attempt]
    assert ended[0]["action"] == "restart with twice the timeout"
    assert_same_bits(hung.weights, sae_runs.get("cpu:3").weights)


def test_a_crash_tells_where_it_was(tmp_path: Path) -> None:
    program = tmp_path / "crash.py"
    program.write_text(
        "import ctypes\n\ndef read_nothing():\n    ctypes.string_at(0)\n\nread_nothing()\n"
    )
    command = ("-m", "drumline", "run", "--gpus", "cpu:1", "--run-dir", "run", program)
    crashed = run_to_end(command, tmp_path)
    assert crashed.code != 0
    assert "killed by SIGSEGV" in crashed.events("attempt_ended")[0]["message"]
    told = (crashed.run / "logs" / "rank-0.log").read_text()
    assert "Fatal Python error: Segmentation fault" in told
    assert 'crash.py", line 4 in read_nothing' in told
