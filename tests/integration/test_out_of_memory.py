"""One rank without memory: all take smaller micro-batches, and the result does not change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import Finished, alone, largest_difference, run_to_end, script

ROUNDING = 1e-12
CONFIG: dict[str, Any] = {
    "steps": 30,
    "global_batch": 32,
    "precision": "fp64",
    "checkpoint": {"every_steps": 5},
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """One process, with micro-batches as small as the others come to."""
    options = {"config": {**CONFIG, "micro_batch": 4, "run_dir": "run"}}
    folder = tmp_path_factory.mktemp("small")
    return run_to_end(alone("memory.py", options), folder).succeeded()


def test_one_rank_at_its_limit_halves_all_in_the_first_step(
    tmp_path: Path, undisturbed: Finished
) -> None:
    """16 samples want 3.2 GB where one rank may have 1 more: 8 do not fit either, 4 do."""
    options = {"config": CONFIG, "limit": {"rank": 1}}
    ended = run_to_end(script("memory.py", "cpu:2", options), tmp_path).succeeded()
    assert len(ended.events("attempt_started")) == 1
    warnings = [e for e in ended.events("warning") if e["code"] == "out_of_memory"]
    assert [event["micro_batch"] for event in warnings] == [8, 4]
    assert ended.losses == pytest.approx(undisturbed.losses, rel=ROUNDING)
    assert largest_difference(ended.weights, undisturbed.weights) <= ROUNDING


def test_a_rank_without_memory_later_restarts_all_with_half_the_micro_batch(
    tmp_path: Path, undisturbed: Finished
) -> None:
    """By then gradients are summed while they are formed, so the attempt cannot be saved. In the
    second attempt, from step 5 on, a rank that still took 16 samples would fail again.
    """
    options = {"config": CONFIG, "fail": {"rank": 1, "call": 7, "above": 8}}
    ended = run_to_end(script("memory.py", "cpu:2", options), tmp_path).succeeded()
    first, second = ended.events("attempt_ended")
    assert first["cause"] == "out_of_memory"
    assert first["action"] == "restart with half the micro-batch"
    assert first["message"].startswith("rank 1: ")
    assert second["cause"] == "done"
    resumed = ended.events("run_started")[-1]
    assert (resumed["step"], resumed["micro_batch"]) == (5, 8)
    assert ended.losses == pytest.approx(undisturbed.losses, rel=ROUNDING)
    assert largest_difference(ended.weights, undisturbed.weights) <= ROUNDING


def test_replicas_that_do_not_fit_are_cut_among_the_ranks(
    tmp_path: Path, undisturbed: Finished
) -> None:
    """At the smallest micro-batch there is nothing left to halve, and the mode is open."""
    failing = {"rank": 1, "call": 7 * 16, "above": 0, "replicas": True}
    options = {"config": {**CONFIG, "micro_batch": 1}, "fail": failing}
    ended = run_to_end(script("memory.py", "cpu:2", options), tmp_path).succeeded()
    first, second = ended.events("attempt_ended")
    assert (first["cause"], first["action"]) == ("out_of_memory", "restart in mode sharded")
    assert second["cause"] == "done"
    modes = [(event["step"], event["mode"]) for event in ended.events("run_started")]
    assert modes == [(0, "distributed"), (5, "sharded")]
    assert ended.losses == pytest.approx(undisturbed.losses, rel=ROUNDING)
    assert largest_difference(ended.weights, undisturbed.weights) <= ROUNDING
