"""The one Trainer: a loop that a reader can follow on this page.

Data comes from a Source, a Step learns from it, watchers see what happened, and once a step the
ranks agree whether to go on. What each of these is, a task and a config decide; see `task`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from signal import Signals
from typing import Any

from torch import nn

from drumline.config import ClusterEnvironment, RunConfig
from drumline.config.load import override
from drumline.config.section import import_object
from drumline.distributed import World, is_communication_failure, open_world
from drumline.errors import EXIT_DONE, EXIT_RESUME_ME, BadInput
from drumline.run_directory import RunDirectory
from drumline.training.own_model import EvaluateFunction, LossFunction, OwnModelTask
from drumline.training.session import Session, open_session
from drumline.training.signals import StopSignals
from drumline.training.source import MapDataset, StepBatch
from drumline.training.step import StepOutcome
from drumline.training.task import Task
from drumline.training.where import agree_on_run_directory


@dataclass
class Result:
    """How a fit ended. `status` is "done", or "stopped" when a signal asked for it.

    `samples` counts from the start of the run; `seconds` and `samples_per_s` are of this process,
    the latter over its steps only, evaluations and checkpoints between them included.
    """

    status: str
    message: str
    step: int
    samples: int
    seconds: float
    samples_per_s: float
    run_dir: Path
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """What a process that ran this fit should end with."""
        return EXIT_DONE if self.status == "done" else EXIT_RESUME_ME


class Trainer:
    """Trains what a config says, on the devices this process and its peers have.

    Give a config that names a task, or a `Task`, or a model with data and a loss:

        Trainer(config, model=build, data=dataset, loss=per_sample_loss).fit()

    Args:
        config: The run.
        task: What is trained; by default the task that the config names.
        model, data, loss, evaluate: See `OwnModelTask`; instead of a task.
    """

    def __init__(
        self,
        config: RunConfig,
        task: Task | None = None,
        *,
        model: nn.Module | Callable[[], nn.Module] | None = None,
        data: MapDataset | None = None,
        loss: LossFunction | None = None,
        evaluate: EvaluateFunction | None = None,
    ) -> None:
        self.config = config
        self.task = task or _task(config, model, data, loss, evaluate)

    def fit(self, opened: Callable[[RunDirectory], None] | None = None) -> Result:
        """Train to the end, or until a signal asks to stop; resume if the run has a checkpoint.

        Works alone and in every rank of a world that a launcher made.

        Args:
            opened: Called once the run directory is known, before the first event.

        Raises:
            DrumlineError: For every failure with a known cause.
        """
        environment = ClusterEnvironment.detect()
        config = override(self.config, environment.overrides)
        with StopSignals() as signals, open_world(config, environment) as world:
            run = agree_on_run_directory(config, world)
            if opened is not None:
                opened(run)
            session = open_session(config, self.task, world, run)
            try:
                session.performance.begin(session)
                before, began = session.progress.samples, time.perf_counter()
                stopped = self._loop(session, signals)
                speed = (session.progress.samples - before) / (time.perf_counter() - began)
                return self._end(session, stopped, speed)
            except RuntimeError as error:
                if not is_communication_failure(error):
                    raise
                raise world.control.missing("collective", error) from error
            finally:
                for watcher in session.watchers:
                    watcher.close()
                session.source.close()
                session.strategy.teardown()
                session.events.close()

    def _loop(self, session: Session, signals: StopSignals) -> bool:
        """Step by step to the end, of the steps or of the source; True if a signal stopped it."""
        control, progress = session.world.control, session.progress
        session.open_source()
        resumed_at = progress.step
        while progress.step < session.steps:
            ballot = control.call(stop=signals.number)
            batch = session.next_batch()
            if batch is None:
                ballot.result()
                return False
            session.schedule(batch)
            for watcher in session.watchers:
                watcher.before_step(session, batch)
            outcome = session.step.take(batch, progress.step)
            _advance(session, batch, outcome)
            if progress.step == resumed_at + 1 and session.world.is_main:
                session.events.emit("first_step", step=progress.step)
            for watcher in session.watchers:
                watcher.after_step(session, batch, outcome)
            stop = ballot.result()["stop"]
            if stop and progress.step < session.steps:
                if session.world.is_main:
                    session.events.emit("stop_requested", signal=Signals(stop).name)
                return True
        return False

    def _end(self, session: Session, stopped: bool, speed: float) -> Result:
        if stopped:
            session.checkpointing.save(session)
        else:
            for watcher in session.watchers:
                watcher.at_end(session)
        progress = session.progress
        result = Result(
            status="stopped" if stopped else "done",
            message=f"stopped at step {progress.step} of {session.steps}; resume to go on"
            if stopped
            else f"{progress.step} steps done",
            step=progress.step,
            samples=progress.samples,
            seconds=round(time.perf_counter() - session.began, 3),
            samples_per_s=round(speed, 1),
            run_dir=session.run.path,
            metrics=session.metrics,
        )
        _record(session, result)
        session.world.barrier("end of the run")
        return result


def _advance(session: Session, batch: StepBatch, outcome: StepOutcome) -> None:
    progress = session.progress
    progress.step += 1
    progress.samples += batch.global_count
    progress.cursor = batch.cursor
    progress.skipped += not outcome.taken
    progress.skipped_in_a_row = 0 if outcome.taken else progress.skipped_in_a_row + 1


def _record(session: Session, result: Result) -> None:
    if session.world.is_main:
        facts: dict[str, Any] = {**asdict(result), "run_dir": str(result.run_dir)}
        session.events.emit("run_ended", **facts)
        attempt = session.world.environment.attempt
        end = {"exit_code": result.exit_code, "attempts": attempt + 1, "attempt": attempt}
        try:
            session.run.write_json(session.run.result_path, {**facts, **end})
        except OSError as error:  # the training is done all the same
            session.events.emit("warning", message=f"result.json could not be written: {error}")


def _task(
    config: RunConfig,
    model: nn.Module | Callable[[], nn.Module] | None,
    data: MapDataset | None,
    loss: LossFunction | None,
    evaluate: EvaluateFunction | None,
) -> Task:
    if model is not None and data is not None and loss is not None:
        return OwnModelTask(model, data, loss, evaluate)
    if config.task is not None:
        built: Task = import_object(config.task.implementation)()
        return built
    raise BadInput(
        "There is nothing to train: the config names no task.",
        remedy="Set task.name, or give Trainer a model, data and a loss.",
    )


__all__ = ["Result", "Trainer", "World"]
