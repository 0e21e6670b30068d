"""The steps of a Trainer's session, taken before its first and forgotten again."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from drumline.training.batches import narrow, to_device
from drumline.training.performance.loading import Feed, Reading
from drumline.training.performance.snapshot import Snapshot
from drumline.training.performance.switch import Subject
from drumline.training.performance.workload import Workload, name_of_arithmetic
from drumline.training.precision import Arithmetic
from drumline.training.source import MapSource, StepBatch
from drumline.training.step import Gate, StandardStep

if TYPE_CHECKING:
    from drumline.training.session import Session

ENDLESS = 1 << 30


class Rehearsal(Workload):
    """Whole steps of a session: its own step, mode, precision and micro-batches.

    It works with a copy of the step, which judges no update, and on the batches that come next.

    Args:
        session: Before its first step.
        batches: What the source gives from the session's cursor on.
    """

    def __init__(self, session: Session, batches: Sequence[StepBatch]) -> None:
        assert isinstance(session.step, StandardStep)
        self.session, self.batches = session, batches
        self._step = copy.copy(session.step)
        self._step.gate = Gate()
        self._first = session.progress.step
        self._arithmetic = Arithmetic(session.config.precision, session.world.device)
        self._sums: dict[str, Tensor] = {}

    def attempt(self) -> None:
        """One micro-batch. Where a forward is collective, ranks do wait for each other."""
        session, batch = self.session, self.batches[0]
        strategy, size = session.strategy, min(self._step.micro_batch, batch.count)
        data = to_device(narrow(batch.data, 0, size), session.world.device)
        session.optimizer.zero_grad(set_to_none=True)
        collective = strategy.lockstep or strategy.primes
        with nullcontext() if collective else strategy.accumulate():
            with self._arithmetic.autocast():
                losses = session.task.loss(self._step.wrapped, data)
            torch.autograd.backward(losses.loss_sum * (session.scaler.scale / batch.global_count))
        session.optimizer.zero_grad(set_to_none=True)

    def step(self, number: int) -> float:
        """The step of a batch, its sums added up as the metrics do."""
        which = number % len(self.batches)
        outcome = self._step.take(self.batches[which], self._first + which)
        for name, value in outcome.sums.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value
        return outcome.loss

    def arithmetic(self) -> str:
        """As the config's precision says."""
        dtype = self._arithmetic.autocast_dtype or self._arithmetic.weights
        return name_of_arithmetic({dtype}, self.session.world.device)

    def subject(self) -> Subject:
        """What switches work on."""
        session, free = self.session, self.session.strategy.rewraps
        return Subject(
            session.model,
            session.optimizer,
            session.world.device,
            rewrap=self._rewrap,
            fixed_layout="" if free else "this mode fixes the layout of weights",
            gradient_group=getattr(session.strategy, "channel", None),
        )

    def snapshot(self) -> Snapshot:
        """All that a step changes. Parts other than model and optimizer are equal on all ranks."""
        session = self.session
        more = (session.progress, session.scaler, session.source, session.task)
        return Snapshot(session.model, session.optimizer, more)

    def _rewrap(self) -> None:
        step, strategy = self.session.step, self.session.strategy
        if strategy.rewraps and isinstance(step, StandardStep):
            step.wrapped = self._step.wrapped = strategy.rewrap()


class SourceFeed(Feed):
    """A session's source, read with other numbers of loader processes.

    Args:
        session: Whose share of each step says so; `use` exchanges that.
        rehearsal: Takes the steps.
    """

    def __init__(self, session: Session, rehearsal: Rehearsal) -> None:
        self._session, self._rehearsal = session, rehearsal
        self.reading, self.batches = Reading(session.share.workers), ENDLESS

    def why_not(self) -> str | None:
        """Only a source of samples by number reads the same in any process."""
        if isinstance(self._session.source, MapSource):
            return None
        return f"{type(self._session.source).__name__} has no loader processes"

    def open(self, reading: Reading) -> Iterator[Any]:
        """From the session's cursor on."""
        share = replace(self._session.share, workers=reading.workers)
        return self._session.source.open(share, self._session.progress.cursor)

    def train_on(self, batch: Any) -> None:
        """A step on it."""
        self._rehearsal.batches = [batch]
        self._rehearsal.step(0)

    def data(self, batch: Any) -> Any:
        """This rank's samples."""
        return batch.data

    def use(self, reading: Reading) -> None:
        """From the first step on."""
        self._session.share = replace(self._session.share, workers=reading.workers)
        self.reading = reading


def coming_batches(session: Session, count: int) -> list[StepBatch]:
    """The session's next batches, from an iterator of their own."""
    return list(islice(session.source.open(session.share, session.progress.cursor), count))


def why_not(session: Session, batches: Sequence[StepBatch]) -> str | None:
    """Why a session cannot be rehearsed; None if it can."""
    if type(session.step) is not StandardStep:
        return f"the task takes steps of its own ({type(session.step).__name__})"
    if any(0 in batch.counts for batch in batches):
        return "a rank has no samples in a step"
    return None
