"""How checks are run: in order, each within its time, none able to end the others."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from drumline.bench.checks import (
    CheckContext,
    Finding,
    HostCheck,
    RankCheck,
    Seat,
    Status,
    TorchFacts,
    counts,
    exit_code,
    run_checks,
)
from drumline.bench.checks.finding import failed, passed, warned
from drumline.bench.checks.ranks import START, Attempt, check_on_ranks
from drumline.bench.checks.registry import RANK_CHECKS
from drumline.hardware import Host, Machine
from drumline.planning import PlannedDevice

GPUS = tuple(PlannedDevice("cuda", "H100", f"GPU-{index}", index) for index in range(3))
TORCH = TorchFacts("2.11", "13.0", None, True)


def context(devices: tuple[PlannedDevice, ...] = GPUS, **fields: Any) -> CheckContext:
    return CheckContext(Machine(Host("here")), TORCH, devices, **fields)


def good(context: CheckContext) -> Sequence[Finding]:
    return [passed("good", "fine")]


def crash(context: CheckContext) -> Sequence[Finding]:
    raise ZeroDivisionError("by zero")


def hang(context: CheckContext) -> Sequence[Finding]:
    threading.Event().wait(20)
    return []


def measure(seat: Seat) -> int:
    return seat.rank


def judge(context: CheckContext, measured: Sequence[Any]) -> Sequence[Finding]:
    return [passed("judged", f"{measured}")]


def none_on_ranks(checks: Sequence[RankCheck], context: CheckContext) -> Iterator[Finding]:
    yield from ()


def test_a_host_check_that_crashes_or_hangs_is_a_failure_and_the_others_go_on() -> None:
    checks = [
        HostCheck("crash", "host", crash),
        HostCheck("hang", "host", hang, timeout_s=0.05),
        HostCheck("good", "host", good),
    ]
    found = list(run_checks(context(), checks, [], none_on_ranks))
    assert [(one.name, one.status.value) for one in found] == [
        ("crash", "fail"), ("hang", "fail"), ("good", "pass"),
    ]  # fmt: skip
    assert "ZeroDivisionError: by zero" in found[0].text
    assert "within 0.05 s" in found[1].text
    assert all(one.group == "host" for one in found)


def test_what_takes_the_hosts_cores_waits_until_nothing_is_measured() -> None:
    measured = threading.Event()

    def heavy(context: CheckContext) -> Sequence[Finding]:
        return [passed("heavy", f"{measured.is_set()}")]

    def on_ranks(checks: Sequence[RankCheck], context: CheckContext) -> Iterator[Finding]:
        yield passed("rates", "fine")
        measured.set()

    checks = [HostCheck("heavy", "model", heavy, heavy=True), HostCheck("good", "host", good)]
    found = list(run_checks(context(), checks, [check("rates")], on_ranks))
    assert [one.name for one in found] == ["good", "rates", "heavy"]
    assert found[-1].text == "True"


def test_quick_leaves_out_what_is_slow_but_never_the_all_reduce() -> None:
    asked: list[str] = []

    def on_ranks(checks: Sequence[RankCheck], context: CheckContext) -> Iterator[Finding]:
        asked.extend(check.name for check in checks)
        yield from ()

    found = list(run_checks(context(quick=True), [], RANK_CHECKS, on_ranks))
    assert "all-reduce" in asked
    assert "matmul" in asked
    assert "all-reduce on pairs" not in asked
    assert any(one.text == "left out by --quick" for one in found)


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        ((), "no device can be measured"),
        ((PlannedDevice("cuda", "H100", "SIM-1", 0, True),), "simulated"),
    ],
)
def test_what_cannot_be_measured_is_skipped_with_the_reason(
    devices: tuple[PlannedDevice, ...], said: str
) -> None:
    found = list(run_checks(context(devices), [], RANK_CHECKS, none_on_ranks))
    assert len(found) == len(RANK_CHECKS)
    assert all(one.status is Status.SKIPPED and said in one.text for one in found)
    assert exit_code(found) == 0


class Launches:
    """Ranks that record as told: for each launch, by check, what each rank leaves behind."""

    def __init__(self, *launches: dict[str, list[Any]], log: str = "", message: str = "") -> None:
        self._launches = list(launches)
        self._log, self._message = log, message
        self.asked: list[tuple[list[str], int]] = []

    def __call__(self, checks: Sequence[RankCheck], context: CheckContext) -> Attempt:
        self.asked.append(([check.name for check in checks], len(context.devices)))
        size, told = len(context.devices), self._launches.pop(0)
        records: list[list[dict[str, Any]]] = [[] for _ in range(size)]
        for check, ends in told.items():
            for rank, end in enumerate(ends):
                records[rank].append({"check": check, "rank": rank, "state": "started"})
                if isinstance(end, str):
                    records[rank].append({"check": check, "state": "error", "message": end})
                elif end is not None:
                    records[rank].append(
                        {"check": check, "state": "done", "value": end, "seconds": 1.0}
                    )
        logs = [self._log if any(e is None for e in told.get("a", [])) else "" for _ in range(size)]
        return Attempt(records, logs, self._message)


def check(name: str, *, together: bool = False) -> RankCheck:
    return RankCheck(name, "device", measure, judge, together=together, timeout_s=5.0)


def test_a_rank_that_crashes_costs_one_check_and_its_device() -> None:
    launches = Launches({"a": [1, "CUDA error: broken", None]}, {"b": [7, 8]})
    found = list(check_on_ranks([check("a"), check("b")], context(), launches))
    assert [one.status.value for one in found] == ["fail", "pass"]
    assert found[0].text == "GPU 1: CUDA error: broken"
    assert found[1].text == "[7, 8]"
    assert launches.asked == [(["a", "b"], 3), (["b"], 2)]


def test_a_rank_that_hangs_is_named_with_the_time_it_had() -> None:
    launches = Launches({"a": [1, 2, None]}, {"b": [7, 8]}, log="Timeout (0:00:05)!\n")
    found = list(check_on_ranks([check("a"), check("b")], context(), launches))
    assert found[0].text == "GPU 2: did not finish within 5 s"


def test_a_rank_that_is_killed_is_told_by_the_launcher() -> None:
    launches = Launches({"a": [1, 2, None]}, message="rank 2 was killed by SIGSEGV")
    found = list(check_on_ranks([check("a", together=True)], context(), launches))
    assert found[0].text == "GPU 2: rank 2 was killed by SIGSEGV"


def test_without_a_process_group_the_rest_is_skipped() -> None:
    launches = Launches({START: ["NCCL error"] * 3})
    checks = [check(START, together=True), check("b", together=True)]
    found = list(check_on_ranks(checks, context(), launches))
    assert [one.status.value for one in found] == ["fail", "skipped"]


def test_ranks_that_do_not_start_are_a_failure() -> None:
    launches = Launches({}, message="rank 0 ended with exit code 1")
    found = list(check_on_ranks([check("a"), check("b")], context(), launches))
    assert [one.status.value for one in found] == ["fail", "skipped", "skipped"]
    assert "exit code 1" in found[0].text


def test_judging_that_breaks_is_a_failure() -> None:
    def broken(context: CheckContext, measured: Sequence[Any]) -> Sequence[Finding]:
        raise KeyError("bf16")

    wrong = RankCheck("a", "device", measure, broken)
    found = list(check_on_ranks([wrong], context(), Launches({"a": [1, 2, 3]})))
    assert found[0].status is Status.FAIL
    assert "KeyError" in found[0].text


def test_counts_and_exit_code() -> None:
    fine = [passed("a", ""), warned("b", "", "do")]
    assert exit_code(fine) == 0
    assert exit_code([*fine, failed("c", "", "do")]) == 1
    assert counts(fine) == {"pass": 1, "warn": 1, "fail": 0, "skipped": 0}


def test_the_host_is_looked_at_while_ranks_start() -> None:
    begun = threading.Event()

    def on_ranks(checks: Sequence[RankCheck], context: CheckContext) -> Iterator[Finding]:
        begun.set()
        yield passed("measured", "fine")

    def look(context: CheckContext) -> Sequence[Finding]:
        return [passed("host", "fine") if begun.wait(20) else failed("host", "alone", "")]

    checks = [HostCheck("host", "host", look, timeout_s=30.0)]
    ranks = [RankCheck("measured", "ranks", measure, judge)]
    found = list(run_checks(context(), checks, ranks, on_ranks))
    assert [(one.name, one.status) for one in found] == [
        ("host", Status.PASS),
        ("measured", Status.PASS),
    ]


def test_what_ranks_say_does_not_count_where_torch_does_not_reach_the_gpus() -> None:
    def on_ranks(checks: Sequence[RankCheck], context: CheckContext) -> Iterator[Finding]:
        yield failed("measured", "no CUDA", "")

    lost = replace(context(), torch=replace(TORCH, available=False))
    ranks = [RankCheck("measured", "ranks", measure, judge)]
    (found,) = run_checks(lost, (), ranks, on_ranks)
    assert (found.name, found.status) == ("measured", Status.SKIPPED)
    assert found.text == "torch does not reach the GPUs"


def test_what_ranks_raise_is_raised() -> None:
    def on_ranks(checks: Sequence[RankCheck], context: CheckContext) -> Iterator[Finding]:
        yield passed("measured", "fine")
        raise KeyboardInterrupt

    ranks = [RankCheck("measured", "ranks", measure, judge)]
    found = run_checks(context(), (), ranks, on_ranks)
    assert next(found).name == "measured"
    with pytest.raises(KeyboardInterrupt):
        next(found)
