"""What hangs on the loop: metrics, evaluation, checkpoints. Each is called after every step, on
every rank, in the same order, and can be left out without the loop noticing.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from drumline.errors import CheckpointError, NumericsError
from drumline.training.source import StepBatch
from drumline.training.step import StepOutcome, add_sums

if TYPE_CHECKING:
    from drumline.training.session import Session


class Watcher(ABC):
    """Sees every step, and the end."""

    def before_step(self, session: Session, batch: StepBatch) -> None:
        """Called when the learning rate of a step is set and nothing else is done."""
        del session, batch

    @abstractmethod
    def after_step(self, session: Session, batch: StepBatch, outcome: StepOutcome) -> None:
        """Called when a step was taken or skipped and the progress counts it."""

    def at_end(self, session: Session) -> None:
        """Called when all steps are done (not when the run is stopped)."""
        del session

    def close(self) -> None:
        """Called last, however the run ended: take back what was put on the model."""


class SkipWatcher(Watcher):
    """Reports skipped steps, and ends a run that only skips."""

    def after_step(self, session: Session, batch: StepBatch, outcome: StepOutcome) -> None:
        """Count skips in a row; past the bound, raise NumericsError on all ranks alike."""
        del batch
        if outcome.taken:
            return
        progress, limit = session.progress, session.config.max_skipped_steps
        if session.world.is_main:
            session.events.emit(
                "step_skipped",
                step=progress.step,
                reason=outcome.reason,
                loss_scale=session.scaler.scale,
            )
        if progress.skipped_in_a_row >= limit:
            raise NumericsError(
                f"{limit} steps in a row were skipped, the last at step {progress.step}: "
                f"{outcome.reason}.",
                remedy="Lower optimizer.lr, set clip_norm, or use a wider precision.",
            )


class MetricsWatcher(Watcher):
    """Every so many steps: loss and metrics over all samples since the last time, and speed."""

    def __init__(self, every: int) -> None:
        self.every = every
        self._sums: dict[str, torch.Tensor] = {}
        self._norm: torch.Tensor | None = None
        self._taken = self._own = 0
        self._pending = False
        self._since: float | None = None

    def before_step(self, session: Session, batch: StepBatch) -> None:
        """The clock runs from the first step on."""
        del session, batch
        if self._since is None:
            self._since = time.perf_counter()

    def after_step(self, session: Session, batch: StepBatch, outcome: StepOutcome) -> None:
        """Add up; emit when it is time, or on the last step."""
        if outcome.taken:
            self._taken += batch.global_count
            self._norm = outcome.gradient_norm
            add_sums(self._sums, outcome.sums)
        self._own += batch.count
        self._pending = True
        step = session.progress.step
        if step % self.every == 0 or step == session.steps:
            self._emit(session)

    def at_end(self, session: Session) -> None:
        """Emit what a source that ended early has left."""
        if self._pending:
            self._emit(session)

    def _emit(self, session: Session) -> None:
        seconds = time.perf_counter() - (self._since or 0.0)
        speaks = session.world.speaks  # others have the same sums
        local = {name: float(value) for name, value in self._sums.items() if speaks}
        ranks = session.world.control.gather((local, self._own / seconds if speaks else 0.0))
        if session.world.is_main:
            means = {
                name: sum(sums.get(name, 0.0) for sums, _ in ranks) / max(1, self._taken)
                for name in sorted({name for sums, _ in ranks for name in sums})
            }
            session.events.emit(
                "step",
                step=session.progress.step,
                steps=session.steps,
                epoch=session.progress.cursor.epoch,
                samples=session.progress.samples,
                loss=means.pop("loss", None),
                lr=session.learning_rate,
                grad_norm=None if self._norm is None else float(self._norm),
                samples_per_s=sum(speed for _, speed in ranks),
                rank_samples_per_s=[round(speed, 1) for _, speed in ranks],
                metrics=session.task.derive_metrics(means),
                skipped=session.progress.skipped,
                loss_scale=session.scaler.scale,
            )
        self._sums, self._norm, self._taken, self._own = {}, None, 0, 0
        self._pending = False
        self._since = time.perf_counter()


class EvaluationWatcher(Watcher):
    """Evaluates every so many steps and at the end."""

    def __init__(self, every: int | None, at_end: bool) -> None:
        self.every, self._at_end = every, at_end
        self._last = -1
        self._warned = False

    def after_step(self, session: Session, batch: StepBatch, outcome: StepOutcome) -> None:
        """Evaluate when it is time."""
        del batch, outcome
        if self.every and session.progress.step % self.every == 0:
            self._evaluate(session)

    def at_end(self, session: Session) -> None:
        """Evaluate, unless the last step just did."""
        if self._at_end and self._last != session.progress.step:
            self._evaluate(session)

    def _evaluate(self, session: Session) -> None:
        self._last = session.progress.step
        session.model.eval()
        with torch.no_grad(), session.strategy.gathered():
            found = session.task.evaluate(session.model)
        metrics = {name: float(value) for name, value in found.items()}
        session.model.train()
        session.metrics = metrics
        session.metrics_step = session.progress.step
        if session.world.is_main:
            if metrics:
                session.events.emit("evaluation", step=session.progress.step, metrics=metrics)
            self._check_best(session, metrics)

    def _check_best(self, session: Session, metrics: Mapping[str, float]) -> None:
        rule = session.config.checkpoint.keep_best
        if rule is not None and rule.metric not in metrics and not self._warned:
            self._warned = True
            session.events.emit(
                "warning",
                code="no_such_metric",
                message=f"checkpoint.keep_best.metric {rule.metric} is no metric of the "
                f"evaluation; there are: {', '.join(metrics) or 'none'}.",
            )


class CheckpointWatcher(Watcher):
    """Saves every so many steps, after an evaluation that was the best so far, and at the end."""

    def __init__(self, every: int | None, at_end: bool) -> None:
        self.every, self._at_end = every, at_end
        self._last = -1

    def after_step(self, session: Session, batch: StepBatch, outcome: StepOutcome) -> None:
        """Save when it is time."""
        del batch, outcome
        step = session.progress.step
        if (self.every and step % self.every == 0) or self._is_new_best(session):
            self.save(session)

    def at_end(self, session: Session) -> None:
        """Save, unless the last step just did."""
        if self._at_end:
            self.save(session)

    def save(self, session: Session) -> None:
        """Save now. A checkpoint that cannot be written is reported, and training goes on."""
        step = session.progress.step
        if self._last == step:
            return
        self._last = step
        state = session.state.state_dict()  # a collective: random states of all ranks
        weights = session.strategy.weights()  # likewise, where they are in pieces
        if not session.world.is_main:
            return
        began = time.perf_counter()
        metrics = session.metrics if session.metrics_step == step else {}
        try:
            saved = session.checkpoints.save(step, weights, state, metrics)
        except CheckpointError as error:
            session.events.emit("checkpoint_failed", step=step, reason=error.message)
            return
        session.events.emit(
            "checkpoint",
            step=step,
            path=str(saved.path),
            seconds=round(time.perf_counter() - began, 3),
            bytes=sum(file.stat().st_size for file in saved.path.iterdir()),
        )

    def _is_new_best(self, session: Session) -> bool:
        """Whether this step's evaluation beats all kept checkpoints; rank 0 knows, all agree."""
        rule = session.config.checkpoint.keep_best
        if rule is None or session.metrics_step != session.progress.step:
            return False
        if math.isnan(session.metrics.get(rule.metric, math.nan)):
            return False
        better = False
        if session.world.is_main:
            best = session.checkpoints.best()
            sign = 1 if rule.goal == "min" else -1
            value = session.metrics[rule.metric]
            better = best is None or sign * value < sign * best.metrics[rule.metric]
        return session.world.control.any(better)
