"""`drumline check` with real processes over gloo: right sums, wrong ones, crashes and hangs."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import rank_measurements
from support import started, until

from drumline.bench.checks import CheckContext, Finding, RankCheck, prepare
from drumline.bench.checks.finding import passed
from drumline.bench.checks.links import judge_all_reduce
from drumline.bench.checks.ranks import START, check_on_ranks
from drumline.bench.checks.registry import RANK_CHECKS
from drumline.hardware import Machine


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> CheckContext:
    """Two CPU processes, which find this folder's measurements."""
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))
    return prepare(Machine.probe(), "cpu:2", quick=True)


def shown(context: CheckContext, measured: Sequence[Any]) -> Sequence[Finding]:
    return [passed("values", "", list(measured))]


def check(measure: Any, judge: Any = shown, **fields: Any) -> RankCheck:
    return RankCheck(measure.__name__, "ranks", measure, judge, **fields)


def test_a_real_all_reduce_has_the_right_sum(context: CheckContext) -> None:
    wanted = ("matmul", START, "all-reduce", "vote latency", "clock skew")
    checks = [one for one in RANK_CHECKS if one.name in wanted]
    found = {one.name: one for one in check_on_ranks(checks, context)}
    assert {one.status.value for one in found.values()} == {"pass"}, found
    reduced = found["all-reduce, 2 ranks"]
    assert reduced.value["wrong_elements"] == 0
    assert reduced.value["size_bytes"] == 16 * 2**20
    assert reduced.value["bus_gb_s"] > 0
    assert set(found["matmul fp32"].value) == {"CPU process 0", "CPU process 1"}
    assert found[START].value["backend"] == "gloo"
    assert found["clock skew"].value["skew_s"] < 1


def test_wrong_sums_crashes_kills_and_hangs_are_findings_and_the_rest_goes_on(
    context: CheckContext,
) -> None:
    checks = [
        check(rank_measurements.crash_on_one),
        # Ranks meet here, so that the one which crashes has done so before the other is killed.
        check(rank_measurements.wrong_contribution, judge_all_reduce, together=True),
        check(rank_measurements.killed_on_zero),
        check(rank_measurements.hang_together, together=True, timeout_s=2.0),
        check(rank_measurements.known_values, together=True),
    ]
    crash, wrong, killed, hang, known = check_on_ranks(checks, context)
    assert [one.status.value for one in (crash, wrong, killed, hang, known)] == [
        "fail", "fail", "fail", "fail", "pass",
    ]  # fmt: skip
    assert crash.text == "CPU process 1: ValueError: broken on purpose"
    assert "killed by SIGKILL" in killed.text
    # 1 + 7 in place of 1 + 2: every one of 2**20 elements is wrong, on both ranks.
    assert "1,048,576 elements on CPU process 0, 1,048,576 elements on CPU process 1" in wrong.text
    assert "did not finish within 2 s (the second barrier)" in hang.text
    assert any("hang_together" in line for line in hang.value["logs"][0])
    assert known.value == [[0, 2, 3], [1, 2, 3]]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_check_that_is_ended_leaves_nothing_behind(
    number: signal.Signals, tmp_path: Path
) -> None:
    arguments = ["-m", "drumline", "check", "--gpus", "cpu:2"]
    with started(arguments, tmp_path, TMPDIR=str(tmp_path)) as running:
        until("ranks that start", lambda: [*tmp_path.glob("drumline-check-*/*")])
        ranks = psutil.Process(running.process.pid).children(recursive=True)
        running.signal(number)
        ended = running.finish()
        assert (ended.code, "Interrupted" in ended.err) == (1, True)
        psutil.wait_procs(ranks, timeout=60)
        assert not [rank for rank in ranks if rank.is_running()]
        assert not [*tmp_path.glob("drumline-check-*")]
