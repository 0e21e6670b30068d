"""Reading ahead: how many loader processes, how far ahead, from pinned memory or not.

Only worth it where steps wait for their data, which is measured first. Then one setting after the
other is compared with the best so far, on steps that read their batches.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from drumline.distributed import ControlPlane, is_communication_failure
from drumline.training.performance.report import Outcome, Row
from drumline.training.performance.timing import LEAST_PAIRS, Rules, Timing, measure_pairs

NAME = "loader"
LEAST_BATCHES = 4
"""A setting that leaves fewer batches to be timed is not tried."""

PATIENCE = 1
"""Settings in a row that may bring nothing: one worker often reads no faster than the process."""


@dataclass(frozen=True)
class Reading:
    """A way to read: loader processes, batches each reads ahead, pinned memory."""

    workers: int = 0
    prefetch: int = 2
    pinned: bool = False

    @property
    def ahead(self) -> int:
        """Batches that may be there before the first step."""
        return self.workers * self.prefetch

    def __str__(self) -> str:
        pinned = ", pinned" if self.pinned else ""
        if not self.workers:
            return f"in the process itself{pinned}"
        return f"{self.workers} workers, {self.prefetch} batches ahead each{pinned}"


class Feed(ABC):
    """Batches that can be read in several ways, always the same ones, leaving no trace.

    Attributes:
        reading: The way that is in use.
        batches: How many there are at most.
    """

    reading: Reading
    batches: int

    def why_not(self) -> str | None:
        """Why nothing can be tried; None if it can."""
        return None

    @abstractmethod
    def open(self, reading: Reading) -> Iterator[Any]:
        """Batches from one fixed place on. Closing the iterator ends its processes."""

    @abstractmethod
    def train_on(self, batch: Any) -> None:
        """One whole step."""

    def data(self, batch: Any) -> Any:
        """What must be equal in a batch, however it is read."""
        return batch

    @abstractmethod
    def use(self, reading: Reading) -> None:
        """Read this way from now on."""

    def ladders(self, cpus: int) -> list[list[Reading]]:
        """Settings to try after one another; of each list the next while
        that helps.

        Only what differs from the present setting is taken from them.

        Args:
            cpus: Cores for this rank.
        """
        now = self.reading
        more = [replace(now, workers=n) for n in (1, 2, 4, 8, 16) if now.workers < n <= cpus]
        return [more, [replace(now, workers=0)]]


def tune(feed: Feed, control: ControlPlane, rules: Rules, wait: Callable[[], None]) -> Row:
    """Find the best way to read, use it, and say what it brought. All ranks come to the same.

    Args:
        feed: The batches.
        control: Of all ranks.
        rules: What counts.
        wait: Waits for the device.
    """
    refusal = next((why for why in control.gather(feed.why_not()) if why is not None), None)
    if refusal is not None:
        return Row(NAME, Outcome.NOT_APPLICABLE, refusal)
    problem = None
    try:
        return _Tuning(feed, control, rules, wait).run()
    except Exception as error:
        if is_communication_failure(error):
            raise
        problem = f"it failed: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return Row(NAME, Outcome.UNDONE, problem)


class _Tuning:
    def __init__(
        self, feed: Feed, control: ControlPlane, rules: Rules, wait: Callable[[], None]
    ) -> None:
        self.feed, self.control, self.rules, self._wait = feed, control, rules, wait
        self.tried: list[dict[str, Any]] = []

    def run(self) -> Row:
        first = self.feed.reading
        waiting = max(self.control.gather(self._waiting(first)))
        if waiting < self.rules.minimum_gain:
            reason = f"reading takes {waiting:.1%} of a step: nothing to gain"
            return Row(NAME, Outcome.NOT_APPLICABLE, reason)
        best, last = self._climb(first)
        details = {"tried": self.tried, "waiting": waiting}
        if best == first or last is None:
            return Row(NAME, Outcome.UNDONE, f"nothing is faster than {first}", details=details)
        timing = last if len(self.tried) == 1 else self._compare(first, best)
        self.feed.use(best)
        return Row(
            NAME,
            Outcome.APPLIED,
            f"{best}, before: {first}",
            before_s=timing.before_s,
            after_s=timing.after_s,
            gain=timing.gain,
            noise=timing.noise,
            deviation=0.0,
            tolerance=0.0,
            details=details,
        )

    def _climb(self, first: Reading) -> tuple[Reading, Timing | None]:
        ranks = len(self.control.gather(0))
        cpus = min(self.control.gather(cpus_of_a_rank(ranks)))
        best, last = first, None
        for ladder in self.feed.ladders(cpus):
            misses = 0
            for rung in ladder:
                reading = _changed(best, first, rung)
                if reading == best or (reading.workers == 0 and best.workers > first.workers):
                    continue
                timing = self._try(best, reading)
                if timing is None:
                    break
                if timing.is_worth(self.rules.minimum_gain):
                    best, last, misses = reading, timing, 0
                    continue
                misses += 1
                if misses > PATIENCE:
                    break
        return best, last

    def _try(self, best: Reading, reading: Reading) -> Timing | None:
        note: dict[str, Any] = {"setting": str(reading)}
        self.tried.append(note)
        if self._steps(reading) < LEAST_BATCHES:
            note["reason"] = f"the loader's {self.feed.batches} batches are too few to time it"
            return None
        if self.control.any(not self._reads_the_same(reading)):
            note["reason"] = "its batches differ: the data set draws at random in each process"
            return None
        timing = self._compare(best, reading)
        note.update(gain=timing.gain, noise=timing.noise)
        return timing

    def _compare(self, before: Reading, after: Reading) -> Timing:
        steps = min(self._steps(before), self._steps(after))
        return measure_pairs(
            lambda second: self._block(after if second else before, steps),
            LEAST_PAIRS,
            self.control,
        )

    def _steps(self, reading: Reading) -> int:
        """Timed steps of a block: what was read ahead at the start is used up before."""
        return min(16, self.feed.batches - self._lead(reading))

    def _lead(self, reading: Reading) -> int:
        return max(2, reading.ahead + 1)

    def _block(self, reading: Reading, steps: int) -> float:
        with closing(_as_generator(self.feed.open(reading))) as batches:
            for _ in range(self._lead(reading)):
                self.feed.train_on(next(batches))
            self._wait()
            began = self.rules.clock()
            for _ in range(steps):
                self.feed.train_on(next(batches))
            self._wait()
            return (self.rules.clock() - began) / steps

    def _waiting(self, reading: Reading) -> float:
        """The part of a step in which the process waits for its batch."""
        clock, waited = self.rules.clock, 0.0
        with closing(_as_generator(self.feed.open(reading))) as batches:
            for _ in range(min(self._lead(reading), max(0, self.feed.batches - 1))):
                self.feed.train_on(next(batches))
            steps = max(1, self._steps(reading))
            self._wait()
            began = clock()
            for _ in range(steps):
                asked = clock()
                batch = next(batches)
                waited += clock() - asked
                self.feed.train_on(batch)
            self._wait()
            whole = clock() - began
        return waited / whole if whole else 0.0

    def _reads_the_same(self, reading: Reading) -> bool:
        both = []
        for way in (self.feed.reading, reading):
            with closing(_as_generator(self.feed.open(way))) as batches:
                both.append([self.feed.data(next(batches)) for _ in range(2)])
        return equal(*both)


def _changed(best: Reading, first: Reading, rung: Reading) -> Reading:
    """The best so far, with what a rung changes of the first setting; without processes nothing
    is read ahead.
    """
    own = {
        name: getattr(rung, name)
        for name in ("workers", "prefetch", "pinned")
        if getattr(rung, name) != getattr(first, name)
    }
    if "prefetch" in own and not best.workers:
        del own["prefetch"]
    return replace(best, **own)


def equal(one: Any, other: Any) -> bool:
    """Whether two nested batches are equal in every bit."""
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(one.cpu(), other.cpu())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    same: Any = one == other
    return bool(same.all()) if hasattr(same, "all") else bool(same)


def cpus_of_a_rank(ranks: int) -> int:
    """Cores for each of this machine's ranks, taking all ranks to be on it."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, cores // max(1, ranks))


def _as_generator(batches: Iterator[Any]) -> Any:
    """An iterator that can be closed; loader processes end with the last reference to theirs."""
    yield from batches
