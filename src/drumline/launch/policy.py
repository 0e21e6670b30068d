"""What follows when an attempt ends: a pure function from what happened to what is done."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from drumline.errors import EXIT_BAD_INPUT, EXIT_FAILED

if TYPE_CHECKING:
    from drumline.launch.loss import Loss

COMMUNICATION = "communication"
OUT_OF_MEMORY = "out_of_memory"
TIMEOUT = "timeout"
DEVICE_LOST = "device_lost"
_FROM_OUTSIDE = ("SIGKILL", "SIGSEGV", "SIGBUS", "SIGTERM")  # SIGABRT follows an error of a peer
_SECONDARY = (COMMUNICATION, "rank_failed", TIMEOUT)


class Action(StrEnum):
    """What the launcher does next."""

    FINISH = "finish"
    RESTART = "restart"
    RESTART_SMALLER = "restart with half the micro-batch"
    RESTART_SHARDED = "restart in mode sharded"
    RESTART_PATIENT = "restart with twice the timeout"
    RESTART_FEWER = "restart on the devices that are left"
    STOP = "stop"


@dataclass(frozen=True)
class RankEnd:
    """How one rank ended: its exit code, negative for a signal. A rank that the launcher ended,
    because another had failed, is `ended_by_us`.
    """

    rank: int
    exit_code: int
    ended_by_us: bool = False

    @property
    def signal_name(self) -> str:
        """The signal that killed it, or nothing."""
        if self.exit_code >= 0:
            return ""
        try:
            return signal.Signals(-self.exit_code).name
        except ValueError:
            return f"signal {-self.exit_code}"


@dataclass(frozen=True)
class AttemptEnd:
    """All that is known of how an attempt ended.

    Attributes:
        result: The result.json of this attempt, if it wrote one.
        ranks: How each rank ended.
        failures: The `rank_failed` events of this attempt, in order.
        steps: Steps that the attempt itself took.
        killed_by_us: Whether the launcher ended the ranks (a second Ctrl-C).
        loss: What the devices of the attempt have lost since it was planned.
    """

    result: dict[str, Any] | None
    ranks: list[RankEnd]
    failures: list[dict[str, Any]] = field(default_factory=list)
    steps: int = 0
    killed_by_us: bool = False
    loss: Loss | None = None


@dataclass(frozen=True)
class Decision:
    """What is done, why, and what to tell the user; `loss` goes with a restart on fewer devices."""

    action: Action
    cause: str
    message: str
    exit_code: int = 0
    remedy: str = ""
    loss: Loss | None = None


@dataclass(frozen=True)
class Savings:
    """What a run has left to save memory by.

    Attributes:
        halving: Whether the micro-batch can be halved.
        cutting: Whether the mode is left open, and replicas can be cut among ranks instead.
    """

    halving: bool
    cutting: bool = False

    @property
    def first(self) -> Action | None:
        """What is done where memory ran out: what slows the run least."""
        if self.halving:
            return Action.RESTART_SMALLER
        return Action.RESTART_SHARDED if self.cutting else None


def decide(end: AttemptEnd, restarts_left: int, savings: Savings) -> Decision:
    """Decide what follows.

    Args:
        end: How the attempt ended.
        restarts_left: How many more attempts the config allows.
        savings: What could be done about memory.
    """
    if end.result is not None and end.result.get("status") in ("done", "stopped"):
        return Decision(
            Action.FINISH,
            str(end.result["status"]),
            str(end.result.get("message", "")),
            int(end.result.get("exit_code", 0)),
        )
    if all(rank.exit_code == 0 for rank in end.ranks) and not end.failures:
        return Decision(Action.FINISH, "done", "all ranks ended")
    if end.killed_by_us:
        return Decision(Action.STOP, "killed", "ended at once, as asked", EXIT_FAILED)
    decision = _first_cause(end, savings)
    if end.loss is not None and decision.exit_code != EXIT_BAD_INPUT:
        decision = _from_loss(end.loss)
    if decision.action is not Action.STOP and restarts_left < 1:
        return replace(
            decision,
            action=Action.STOP,
            exit_code=EXIT_FAILED,
            message=f"{decision.message}; no restart is left",
            remedy=decision.remedy or "Raise distributed.max_restarts, or resume by hand.",
        )
    return decision


def _from_loss(loss: Loss) -> Decision:
    """A device that is gone explains whatever else was seen of the attempt's end."""
    what = "; ".join(loss.lost)
    if loss.plan is None:
        refused = loss.refused[:1].lower() + loss.refused[1:].rstrip(".")
        message = f"{what}; the run cannot go on: {refused}"
        return Decision(Action.STOP, DEVICE_LOST, message, EXIT_FAILED, loss.remedy)
    return Decision(Action.RESTART_FEWER, DEVICE_LOST, what, EXIT_FAILED, loss=loss)


def _first_cause(end: AttemptEnd, savings: Savings) -> Decision:
    """The cause behind the others: peers of a dead rank fail too, by losing contact with it."""
    primary = next((f for f in end.failures if f.get("code") not in _SECONDARY), None)
    alone = [rank for rank in end.ranks if rank.exit_code and not rank.ended_by_us]
    killed = next((rank for rank in alone if rank.exit_code < 0), None)
    by_chance = killed is not None and killed.signal_name in _FROM_OUTSIDE
    if primary is not None and (not by_chance or primary.get("exit_code") == EXIT_BAD_INPUT):
        return _from_failure(primary, end.steps, savings)
    if killed is not None:
        return Decision(
            Action.RESTART,
            "killed",
            f"rank {killed.rank} was killed by {killed.signal_name}",
            EXIT_FAILED,
        )
    if end.failures:
        # When one rank's patience ends first, the others see only that it closed the connection.
        cause = next(filter(_timed_out, end.failures), end.failures[0])
        return _from_failure(cause, end.steps, savings)
    first = (alone or end.ranks)[0]
    return Decision(
        Action.RESTART if end.steps else Action.STOP,
        "exit",
        f"rank {first.rank} ended with exit code {first.exit_code}",
        first.exit_code if first.exit_code == EXIT_BAD_INPUT else EXIT_FAILED,
        "See the last lines of its log.",
    )


def _from_failure(failure: dict[str, Any], steps: int, savings: Savings) -> Decision:
    code = str(failure.get("code", ""))
    message = f"rank {failure.get('rank')}: {failure.get('message', code)}"
    remedy = str(failure.get("remedy", ""))
    if failure.get("exit_code") == EXIT_BAD_INPUT:
        return Decision(Action.STOP, code, message, EXIT_BAD_INPUT, remedy)
    if code == OUT_OF_MEMORY and savings.first is not None:
        return Decision(savings.first, code, message, EXIT_FAILED, remedy)
    if _timed_out(failure):
        return Decision(Action.RESTART_PATIENT, code, message, EXIT_FAILED, remedy)
    if code in (COMMUNICATION, "rank_failed"):
        return Decision(Action.RESTART, code, message, EXIT_FAILED, remedy)
    if code in ("exception", "failed") and steps:
        return Decision(Action.RESTART, code, message, EXIT_FAILED, remedy)
    return Decision(Action.STOP, code, message, EXIT_FAILED, remedy)


def _timed_out(failure: dict[str, Any]) -> bool:
    return failure.get("code") == TIMEOUT or bool(failure.get("values", {}).get("timed_out"))
