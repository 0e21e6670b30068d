"""When ranks are measured at all, and what is said where they cannot be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from single_process import world

from drumline.config import DistributedConfig, Mode
from drumline.planning.balance import OwnWork
from drumline.training.balance import BalanceWatcher, _causes
from drumline.training.source import ShareOfStep
from drumline.training.stopwatch import Stopwatch

CPU = torch.device("cpu")


class Events:
    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    def emit(self, kind: str, **fields: Any) -> None:
        self.told.append({"kind": kind, **fields})


def attached(
    shares: str,
    weights: tuple[int, ...],
    *,
    timed: bool,
    lockstep: bool = False,
    reshares: bool = True,
) -> tuple[bool, list[dict[str, Any]]]:
    """Whether a watcher hangs itself on such a session, and what it says."""
    session: Any = SimpleNamespace(
        share=ShareOfStep(0, weights, sum(weights)),
        step=SimpleNamespace(stopwatch=Stopwatch(CPU) if timed else None),
        strategy=SimpleNamespace(lockstep=lockstep, mode=Mode.SHARDED),
        source=SimpleNamespace(reshares=reshares),
        world=world(),
        events=Events(),
        watchers=[],
    )
    BalanceWatcher(DistributedConfig(shares=shares), CPU).attach(session)
    return bool(session.watchers), session.events.told


@pytest.mark.parametrize("shares", ["equal", "measured"])
def test_ranks_that_share_the_work_are_measured(shares: str) -> None:
    assert attached(shares, (8, 8), timed=True) == (True, [])


@pytest.mark.parametrize("weights", [(16,), (16, 0)])  # alone, or all the work is one rank's
def test_where_there_is_nothing_to_compare_nothing_is_measured(weights: tuple[int, ...]) -> None:
    assert attached("measured", weights, timed=True) == (False, [])


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ({"timed": False, "lockstep": True}, "mode sharded"),
        ({"timed": False}, "a step of its own"),
        ({"timed": True, "reshares": False}, "the task's data"),
    ],
)
def test_shares_that_cannot_follow_speed_stay_equal_and_it_is_said_why(
    what: dict[str, bool], reason: str
) -> None:
    """Where a rank can be timed, a slow one is named all the same."""
    hangs, (told,) = attached("measured", (8, 8), **what)
    assert hangs is what["timed"]
    assert told["code"] == "shares_not_measured"
    assert reason in told["message"]
    assert attached("equal", (8, 8), **what) == (what["timed"], [])


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (OwnWork(0.7, 0.3), ["waits for data 70%"]),
        (OwnWork(0.1, 0.9, on_processor=0.5), ["had one 50% of the time"]),
        (OwnWork(0.1, 0.9, on_processor=0.95), []),
        (OwnWork(0.0, 1.0), []),
    ],
)
def test_causes_are_what_the_times_show(work: OwnWork, said: list[str]) -> None:
    causes = _causes(work, CPU)
    assert len(causes) == len(said)
    assert all(part in cause for part, cause in zip(said, causes, strict=True))
