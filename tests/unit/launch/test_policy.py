"""What follows an attempt, case by case."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from drumline.config import Mode
from drumline.launch.loss import Loss
from drumline.launch.policy import Action, AttemptEnd, RankEnd, Savings, decide
from drumline.planning import Plan

CLEAN = (RankEnd(0, 0), RankEnd(1, 0))
EXITED = (RankEnd(0, 1, ended_by_us=True), RankEnd(1, 1))
KILLED = (RankEnd(0, -9, ended_by_us=True), RankEnd(1, -9))


def failure(code: str, rank: int = 1, exit_code: int = 1, **more: Any) -> dict[str, Any]:
    return {"code": code, "rank": rank, "exit_code": exit_code, "message": f"it was {code}", **more}


def end(
    ranks: tuple[RankEnd, ...] = EXITED,
    failures: tuple[dict[str, Any], ...] = (),
    steps: int = 0,
    result: dict[str, Any] | None = None,
    killed_by_us: bool = False,
    loss: Loss | None = None,
) -> AttemptEnd:
    return AttemptEnd(result, list(ranks), list(failures), steps, killed_by_us, loss)


FINISH, RESTART, STOP = Action.FINISH, Action.RESTART, Action.STOP
SMALLER, PATIENT = Action.RESTART_SMALLER, Action.RESTART_PATIENT
FEWER = Action.RESTART_FEWER
GONE = Loss(("GPU 1 is lost: off the bus",), plan=Plan(Mode.NONE, "none", (), 8, (8,), 8))
ALL_GONE = Loss(("GPU 1 is lost: off the bus",), refused="No device is left.", remedy="Look.")
OOM, TIMEOUT = failure("out_of_memory"), failure("timeout")
LATE = failure("rank_failed", values={"missing": [0], "timed_out": True})
LOST = failure("communication", rank=0)
BUG = failure("exception")
BAD = failure("bad_data", exit_code=2)
DONE = {"status": "done", "message": "12 steps done", "exit_code": 0}
STOPPED = {"status": "stopped", "message": "stopped at step 3", "exit_code": 75}


@pytest.mark.parametrize(
    ("what", "ended", "action", "cause", "exit_code"),
    [
        ("done", end(CLEAN, result=DONE), FINISH, "done", 0),
        ("stopped", end(CLEAN, result=STOPPED), FINISH, "stopped", 75),
        ("a script without a result", end(CLEAN), FINISH, "done", 0),
        ("done, then a crash at exit", end(KILLED, result=DONE), FINISH, "done", 0),
        ("failed before", end(EXITED, (BUG,), 5, {"status": "failed"}), RESTART, "exception", 1),
        ("bad input", end(EXITED, (BAD,)), STOP, "bad_data", 2),
        ("bad input after steps", end(EXITED, (BAD,), 9), STOP, "bad_data", 2),
        ("bad input, peers killed", end(KILLED, (BAD,), 9), STOP, "bad_data", 2),
        ("a rank killed", end(KILLED), RESTART, "killed", 1),
        ("killed, peers lost it", end(KILLED, (LOST,), 9), RESTART, "killed", 1),
        (
            "killed, a peer's error",
            end(KILLED, (failure("exception", rank=0),)),
            RESTART,
            "killed",
            1,
        ),
        ("out of memory", end(EXITED, (OOM,)), SMALLER, "out_of_memory", 1),
        ("out of memory, peers first", end(EXITED, (LOST, OOM)), SMALLER, "out_of_memory", 1),
        ("timeout", end(EXITED, (TIMEOUT,)), PATIENT, "timeout", 1),
        ("a rank late", end(EXITED, (LATE,)), PATIENT, "rank_failed", 1),
        ("late, a peer lost first", end(EXITED, (LOST, LATE)), PATIENT, "rank_failed", 1),
        ("contact lost", end(EXITED, (LOST,)), RESTART, "communication", 1),
        ("a rank missing", end(EXITED, (failure("rank_failed"),)), RESTART, "rank_failed", 1),
        ("an exception at once", end(EXITED, (BUG,)), STOP, "exception", 1),
        ("an exception after steps", end(EXITED, (BUG,), 1), RESTART, "exception", 1),
        ("an exception, peers first", end(EXITED, (LOST, TIMEOUT, BUG)), STOP, "exception", 1),
        ("non-finite", end(EXITED, (failure("non_finite"),), 9), STOP, "non_finite", 1),
        ("an exit without a word", end(EXITED), STOP, "exit", 1),
        ("an exit without a word later", end(EXITED, steps=3), RESTART, "exit", 1),
        ("a device lost", end(KILLED, loss=GONE), FEWER, "device_lost", 1),
        ("a device lost at once", end(EXITED, (BUG,), loss=GONE), FEWER, "device_lost", 1),
        ("a device lost, a rank late", end(EXITED, (LATE,), loss=GONE), FEWER, "device_lost", 1),
        ("the only device lost", end(EXITED, (BUG,), 5, loss=ALL_GONE), STOP, "device_lost", 1),
        ("bad input, a device lost", end(EXITED, (BAD,), loss=GONE), STOP, "bad_data", 2),
        ("done, a device lost", end(CLEAN, result=DONE, loss=GONE), FINISH, "done", 0),
        ("second Ctrl-C", end(KILLED, killed_by_us=True), STOP, "killed", 1),
        ("second Ctrl-C, failures", end(KILLED, (BUG,), 3, killed_by_us=True), STOP, "killed", 1),
        ("second Ctrl-C, yet done", end(CLEAN, result=DONE, killed_by_us=True), FINISH, "done", 0),
    ],
)
def test_decisions(
    what: str, ended: AttemptEnd, action: Action, cause: str, exit_code: int
) -> None:
    decision = decide(ended, 3, Savings(halving=True))
    assert (decision.action, decision.cause, decision.exit_code) == (action, cause, exit_code), what
    assert decision.message


def test_out_of_memory_that_cannot_be_halved_stops() -> None:
    decision = decide(end(EXITED, (OOM,), 9), 3, Savings(halving=False))
    assert (decision.action, decision.exit_code) == (Action.STOP, 1)


def test_replicas_that_fit_no_device_are_cut_where_the_mode_is_open() -> None:
    ended = end(EXITED, (OOM,), 9)
    assert decide(ended, 3, Savings(halving=True, cutting=True)).action is SMALLER
    assert decide(ended, 3, Savings(halving=False, cutting=True)).action is Action.RESTART_SHARDED


@pytest.mark.parametrize(
    "ended", [end(KILLED), end(EXITED, (OOM,)), end(EXITED, (TIMEOUT,)), end(EXITED, (BUG,), 5)]
)
def test_without_restarts_left_it_stops_and_says_why(ended: AttemptEnd) -> None:
    before = decide(ended, 1, Savings(halving=True))
    decision = decide(ended, 0, Savings(halving=True))
    assert before.action is not Action.STOP
    assert (decision.action, decision.exit_code) == (Action.STOP, 1)
    assert decision.message.startswith(before.message)
    assert "no restart is left" in decision.message
    assert decision.cause == before.cause
    assert decision.remedy


def test_what_ends_anyway_does_not_speak_of_restarts() -> None:
    decision = decide(end(EXITED, (BAD,)), 0, Savings(halving=True))
    assert "restart" not in decision.message
    assert decision.exit_code == 2


def test_the_message_names_the_rank_that_failed_first_and_its_remedy() -> None:
    told = failure("bad_data", rank=2, exit_code=2, remedy="Mend the shard.")
    decision = decide(end(EXITED, (LOST, told)), 3, Savings(halving=True))
    assert decision.message == "rank 2: it was bad_data"
    assert decision.remedy == "Mend the shard."


def test_a_rank_ended_by_the_launcher_is_not_the_one_that_was_killed() -> None:
    ranks = (RankEnd(0, -9, ended_by_us=True), RankEnd(1, -11), RankEnd(2, -9, ended_by_us=True))
    assert decide(end(ranks), 3, Savings(halving=True)).message == "rank 1 was killed by SIGSEGV"


@pytest.mark.parametrize(
    ("code", "name"), [(0, ""), (3, ""), (-9, "SIGKILL"), (-15, "SIGTERM"), (-99, "signal 99")]
)
def test_signals_are_named(code: int, name: str) -> None:
    assert RankEnd(0, code).signal_name == name


def test_bad_input_without_an_event_keeps_its_exit_code() -> None:
    ranks = (RankEnd(0, 2), RankEnd(1, 1, ended_by_us=True))
    decision = decide(end(ranks), 3, Savings(halving=True))
    assert (decision.action, decision.exit_code) == (Action.STOP, 2)
    assert "rank 0" in decision.message


def test_an_abort_after_an_error_is_not_taken_for_an_accident() -> None:
    ranks = [RankEnd(0, 1), RankEnd(1, -signal.SIGABRT)]
    decision = decide(end(ranks, (BUG,), steps=0), 3, Savings(halving=True))
    assert decision.action is Action.STOP
    assert decision.cause == BUG["code"]


def test_a_loss_is_told_with_what_keeps_the_run_from_going_on() -> None:
    decision = decide(end(EXITED, (BUG,), loss=ALL_GONE), 3, Savings(halving=True))
    assert decision.message == (
        "GPU 1 is lost: off the bus; the run cannot go on: no device is left"
    )
    assert decision.remedy == "Look."
    assert decide(end(KILLED, loss=GONE), 3, Savings(halving=True)).loss is GONE
    assert decide(end(KILLED, loss=GONE), 0, Savings(halving=True)).action is STOP
