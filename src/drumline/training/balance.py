"""How fast each rank is on its own, and what follows: shares in that proportion, or a warning.

A few steps at a time are timed on every rank: how long it waited for data, and how long forward and
backward took before anything was summed. Waits for other ranks are in neither. All ranks learn all
speeds and come to the same answer, which `planning.balance` gives. Timed steps are steps like
others, and shares change no result, so nothing is trained twice or in vain.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

import torch

from drumline.config import DistributedConfig
from drumline.hardware import choose_provider, why_slow
from drumline.planning.balance import LEAST_GAIN, OwnWork, own_work, rebalance, slow_ranks
from drumline.training.source import ShareOfStep, StepBatch
from drumline.training.step import CAREFUL_STEPS, StepOutcome
from drumline.training.stopwatch import Lap, Stopwatch
from drumline.training.watchers import Watcher

if TYPE_CHECKING:
    from drumline.training.session import Session

TIMED_STEPS = 5
"""Steps of one measurement, of which two may be disturbed."""

CALIBRATIONS = 4
"""Measurements at the start, at most: with each, shares come nearer to where all end at once. They
end with one that is clear and moves nothing.
"""

LOOK_AGAIN_STEPS = 20
"""Steps after which a rank that seemed slow is measured again, before it is named."""

_MUCH_READING = 0.3
_LITTLE_PROCESSOR = 0.8


@dataclass(frozen=True)
class NewShares:
    """Shares that are to take effect, and why."""

    shares: tuple[int, ...]
    speeds: tuple[float, ...]
    gain: float
    reason: str


@dataclass(frozen=True)
class _Timed:
    """One timed step of this rank."""

    samples: int
    waited_s: float
    lap: Lap


class BalanceWatcher(Watcher):
    """Measures every so often; see the module.

    Args:
        config: How the run is spread.
        device: This rank's.
    """

    def __init__(self, config: DistributedConfig, device: torch.device) -> None:
        self.config, self._device = config.balance, device
        self._shares_follow = config.shares == "measured"
        self._calibrations, self._pause = 0, self._between()
        self._timed: list[_Timed | None] = []
        self._share: ShareOfStep | None = None
        self._suspects: frozenset[int] = frozenset()
        self._named: frozenset[int] = frozenset()

    def attach(self, session: Session) -> None:
        """Hang this on a session, where there is anything to compare and it can be measured."""
        if len(session.share.weights) < 2 or 0 in session.share.weights:
            return
        obstacle = _obstacle(session)
        if self._shares_follow and obstacle and session.world.is_main:
            session.events.emit(
                "warning",
                code="shares_not_measured",
                message=f"Shares stay equal, for {obstacle}. distributed.shares takes numbers, "
                "too.",
            )
        self._shares_follow = self._shares_follow and not obstacle
        if self._shares_follow:
            self._calibrations, self._pause = CALIBRATIONS, CAREFUL_STEPS
        if session.step.stopwatch is not None:
            self._share = session.share
            session.watchers.append(self)

    def before_step(self, session: Session, batch: StepBatch) -> None:
        """Arm the stopwatch when it is time."""
        del batch
        if session.share is not self._share:  # in new shares, read by a loader that has just begun
            self._share, self._timed = session.share, []
            self._pause = max(self._pause, 1)
        self._pause -= 1
        self._watch(session).armed = self._pause < 0

    def after_step(self, session: Session, batch: StepBatch, outcome: StepOutcome) -> None:
        """Note what an armed step took; after enough of them, decide with the others."""
        del outcome
        watch = self._watch(session)
        if not watch.armed:
            return
        lap = watch.lap()
        if lap is None or not batch.count:
            self._timed.append(None)
        else:
            self._timed.append(_Timed(batch.count, session.waited_s, lap))
        if len(self._timed) == TIMED_STEPS:
            self._conclude(session)
            self._timed = []

    def _conclude(self, session: Session) -> None:
        self._pause = self._between()
        ranks = session.world.control.gather((session.world.device_name, self._own_work()))
        works = {rank: work for rank, (_, work) in enumerate(ranks) if work is not None}
        if len(works) < len(ranks):
            return  # some rank could not tell, for it began again with smaller micro-batches
        speeds = tuple(works[rank].samples_per_s for rank in range(len(ranks)))
        if session.world.is_main:
            session.events.emit(
                "rank_speeds",
                step=session.progress.step,
                samples_per_s=[round(speed, 3) for speed in speeds],
                reading=[round(works[rank].reading, 3) for rank in range(len(ranks))],
            )
        self._name_slow_ranks(session, slow_ranks([name for name, _ in ranks], speeds), works)
        if self._shares_follow:
            self._share_out(session, speeds, max(work.spread for work in works.values()))

    def _own_work(self) -> OwnWork | None:
        """What the timed steps took for each sample; None if none of them can tell."""
        known = [timed for timed in self._timed if timed is not None]
        if not known:
            return None
        laps = [timed.lap for timed in known]
        on_cpu = self._device.type == "cpu"
        return own_work(
            [timed.samples for timed in known],
            [timed.waited_s for timed in known],
            [lap.seconds for lap in laps],
            fmean(lap.processor_s / lap.seconds for lap in laps) if on_cpu else None,
        )

    def _share_out(self, session: Session, speeds: tuple[float, ...], noise: float) -> None:
        shares, gain = rebalance(session.shares, speeds, session.share.granularity, noise)
        moves, starting = shares != session.shares, self._calibrations > 0
        if starting:
            clear = not moves and noise <= LEAST_GAIN
            self._calibrations = 0 if clear else self._calibrations - 1
            self._pause = 0 if self._calibrations else self._pause
        session.coming = None
        if moves:
            new = NewShares(shares, speeds, gain, f"measured at step {session.progress.step}")
            if starting or self.config.change_at == "once":
                session.reshare(new)
            else:
                session.coming = replace(new, reason=f"{new.reason}, for the next epoch")

    def _name_slow_ranks(
        self, session: Session, slow: Mapping[int, float], works: Mapping[int, OwnWork]
    ) -> None:
        """Warn of ranks that were slow twice in a row, once until they have recovered."""
        again = self._suspects & slow.keys() - self._named
        self._named = (self._named | again) & slow.keys()
        self._suspects = frozenset(slow)
        if self._suspects - self._named:
            self._pause = min(self._pause, LOOK_AGAIN_STEPS)
        rank = session.world.rank
        if rank in again:
            causes = _causes(works[rank], self._device)
            less = "; distributed.shares=measured would give it less to do"
            less = "" if self._shares_follow else less
            session.events.emit(
                "warning",
                code="slow_rank",
                message=f"Rank {rank} works at {slow[rank]:.0%} of the speed of like devices: "
                f"{'; '.join(causes) or 'no cause was found'}. Training goes on{less}.",
                step=session.progress.step,
                part=round(slow[rank], 3),
                causes=causes,
            )

    def _watch(self, session: Session) -> Stopwatch:
        assert session.step.stopwatch is not None
        return session.step.stopwatch

    def _between(self) -> int:
        """Steps that are not timed until the next measurement."""
        every = self.config.every_steps
        return 2**62 if every is None else max(1, every - TIMED_STEPS)


def _obstacle(session: Session) -> str:
    """Why shares cannot follow speed; empty if they can."""
    if session.strategy.lockstep:
        mode = session.strategy.mode.value
        return f"in mode {mode} ranks wait for each other in every layer and cannot be timed"
    if session.step.stopwatch is None:
        return "the task brings a step of its own, which is not timed"
    if not session.source.reshares:
        return "the task's data cannot be cut in other shares while the run goes on"
    return ""


def _causes(own: OwnWork, device: torch.device) -> list[str]:
    """Why this rank may be slow, as far as it can see."""
    causes = []
    if own.reading > _MUCH_READING:
        causes.append(f"it waits for data {own.reading:.0%} of its time (see data_workers)")
    if own.on_processor is not None and own.on_processor < _LITTLE_PROCESSOR:
        causes.append(
            f"other processes take its processor: it had one {own.on_processor:.0%} of the time"
        )
    if device.type == "cuda":
        causes += _told_by_sensors(device)
    return causes


def _told_by_sensors(device: torch.device) -> list[str]:
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    provider = choose_provider()
    try:
        found = [there for there in provider.probe().devices if there.uuid == uuid]
    finally:
        provider.close()
    return [cause for there in found for cause in why_slow(there, os.getpid())]
