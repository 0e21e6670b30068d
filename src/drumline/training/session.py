"""One fit in one rank: everything the loop works on, built in order from a config and a world."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from drumline.config import Mode, RunConfig
from drumline.distributed import Split, Spread, Strategy, World, candidates, spread_model
from drumline.events import EventLog
from drumline.planning.plan import micro_batch_of, spread
from drumline.planning.shares import cut_shares
from drumline.run_directory import RunDirectory
from drumline.training.balance import BalanceWatcher, NewShares
from drumline.training.checkpoint import Checkpoint, CheckpointStore
from drumline.training.optimizer import build_optimizer, learning_rate_factor, set_learning_rate
from drumline.training.performance.in_trainer import Performance
from drumline.training.precision import Arithmetic, LossScaler
from drumline.training.source import ShareOfStep, Source, StepBatch
from drumline.training.stability import Stability
from drumline.training.state import OptimizerState, Progress, RandomStates, Stateful, StateRegistry
from drumline.training.step import StandardStep, Step, StepParts
from drumline.training.task import Setup, Task
from drumline.training.watchers import (
    CheckpointWatcher,
    EvaluationWatcher,
    MetricsWatcher,
    SkipWatcher,
    Watcher,
)


@dataclass
class Session:
    """What belongs to one fit. Built by `open_session`; the loop changes `progress` only.

    `coming` are shares that the next epoch begins with; `waited_s` is how long the last batch was
    waited for.
    """

    config: RunConfig
    world: World
    run: RunDirectory
    events: EventLog
    task: Task
    model: nn.Module
    optimizer: torch.optim.Optimizer
    strategy: Strategy
    scaler: LossScaler
    source: Source
    share: ShareOfStep
    step: Step
    steps: int
    state: StateRegistry
    progress: Progress
    checkpoints: CheckpointStore
    checkpointing: CheckpointWatcher
    watchers: list[Watcher]
    performance: Performance
    metrics: dict[str, float] = field(default_factory=dict)
    metrics_step: int = -1
    learning_rate: float = 0.0
    batches: Iterator[StepBatch] = field(default_factory=lambda: iter(()))
    coming: NewShares | None = None
    waited_s: float = 0.0
    epoch: int | None = None
    began: float = field(default_factory=time.perf_counter)

    def open_source(self) -> None:
        """Let the next batch be the one at the progress's cursor."""
        self.batches = iter(())  # what was read ahead goes before more is read
        self.batches = self.source.open(self.share, self.progress.cursor)

    def next_batch(self) -> StepBatch | None:
        """The batch at the progress's cursor: an epoch's first in the shares that are coming. None
        if the source has ended.
        """
        began = time.perf_counter()
        batch = next(self.batches, None)
        if batch is None:
            return None
        if self.coming is not None and batch.epoch != self.epoch:
            self.reshare(self.coming)
            batch = next(self.batches)
        self.epoch, self.waited_s = batch.epoch, time.perf_counter() - began
        return batch

    @property
    def shares(self) -> tuple[int, ...]:
        """Samples of a full step for each rank."""
        share = self.share
        return cut_shares(share.global_batch, share.weights, share.granularity)

    def reshare(self, new: NewShares) -> None:
        """Cut steps in other shares from the next on. All ranks call it together.

        What was read ahead in the old shares is let go and read again: the cursor counts what all
        ranks have taken, so no sample is lost or taken twice.
        """
        old, self.coming = self.shares, None
        groups = tuple(share // self.share.granularity for share in new.shares)
        self.share = replace(self.share, weights=groups)
        self.open_source()
        self.step.take_care()
        if self.world.is_main:
            self.events.emit(
                "shares_changed",
                step=self.progress.step,
                old=list(old),
                new=list(new.shares),
                rank_samples_per_s=[round(speed, 3) for speed in new.speeds],
                gain=round(new.gain, 4),
                reason=new.reason,
            )

    def schedule(self, batch: StepBatch) -> None:
        """Set the learning rate of the step to come."""
        step = self.progress.step if batch.planned is None else batch.planned
        factor = learning_rate_factor(self.config.schedule, step, self.steps)
        self.learning_rate = self.config.optimizer.lr * factor
        set_learning_rate(self.optimizer, self.learning_rate)


def open_session(config: RunConfig, task: Task, world: World, run: RunDirectory) -> Session:
    """Build everything for one rank; resume from the newest good checkpoint if there is one."""
    events = EventLog(run.events_path, attempt=world.environment.attempt, rank=world.rank)
    arithmetic = Arithmetic(config.precision, world.device)
    arithmetic.apply()
    task.setup(Setup(config, world, events))
    source = task.build_source()
    checkpoints = CheckpointStore(run.checkpoints_path, config.checkpoint)
    resumed = _agree_on_checkpoint(checkpoints, world, events)
    spread_out = _spread_model(config, task, world, run, events, arithmetic, resumed)
    strategy, model = spread_out.strategy, spread_out.model
    optimizer = build_optimizer(config.optimizer, model, strategy.build_optimizer)
    scaler, progress = arithmetic.scaler(), Progress()
    state = StateRegistry()
    stability, performance = Stability(config), Performance(config.performance)
    parts_of_state: dict[str, Stateful] = {
        "progress": progress,
        "optimizer": OptimizerState(optimizer, strategy),
        "scaler": scaler,
        "source": source,
        "task": task,
        "stability": stability,
        "performance": performance,
        "random": RandomStates(world.rank, world.control.gather),
    }
    for name, part in parts_of_state.items():
        state.register(name, part)
    if resumed is not None:
        state.load_state_dict(resumed.load_state())
    shares = strategy.shares(spread(config, world.data_size))
    parts = StepParts(
        task=task,
        model=model,
        wrapped=spread_out.wrapped,
        optimizer=optimizer,
        strategy=strategy,
        world=world,
        arithmetic=arithmetic,
        scaler=scaler,
        events=events,
        seed=config.seed,
        micro_batch=micro_batch_of(config, shares, world.pipeline_size),
        clip_norm=config.clip_norm,
    )
    checkpointing = CheckpointWatcher(config.checkpoint.every_steps, config.checkpoint.at_end)
    watchers: list[Watcher] = [
        SkipWatcher(),
        MetricsWatcher(config.logging.every_steps),
        EvaluationWatcher(config.evaluation.every_steps, config.evaluation.at_end),
        checkpointing,
    ]
    session = Session(
        config=config,
        world=world,
        run=run,
        events=events,
        task=task,
        model=model,
        optimizer=optimizer,
        strategy=strategy,
        scaler=scaler,
        source=source,
        share=ShareOfStep(
            world.data_rank, shares, config.global_batch, task.granularity, config.data_workers
        ),
        step=task.build_step(parts) or _default_step(parts),
        steps=run_length(config, source),
        state=state,
        progress=progress,
        checkpoints=checkpoints,
        checkpointing=checkpointing,
        watchers=watchers,
        performance=performance,
    )
    stability.attach(session)
    BalanceWatcher(config.distributed, world.device).attach(session)
    _announce(session, parts.micro_batch, None if resumed is None else resumed.path)
    return session


def run_length(config: RunConfig, source: Source) -> int:
    """Steps of a run, at most."""
    planned = config.steps or source.planned_steps(config.global_batch)
    return planned or source.steps_in_epochs(config.epochs or 1, config.global_batch)


def _spread_model(
    config: RunConfig,
    task: Task,
    world: World,
    run: RunDirectory,
    events: EventLog,
    arithmetic: Arithmetic,
    resumed: Checkpoint | None,
) -> Spread:
    """Build the model, fill it, and spread it; once for each mode that has to be tried."""

    def prepare(strategy: Strategy) -> nn.Module:
        torch.manual_seed(config.seed)
        model = strategy.place(task.build_model(), world.device, arithmetic.weights)
        if resumed is None:
            task.initialise(model)
        else:
            resumed.load_weights(model)
        return model

    def split(strategy: Strategy, model: nn.Module) -> Split:
        task.check_mode(strategy.mode)
        count = strategy.stages
        stages = task.pipeline_stages(model, count) if count > 1 else None
        return Split(task.shard_units(model), task.tensor_plan(model), stages)

    def report(failed: Strategy, reason: str, following: Strategy) -> None:
        events.emit(
            "warning",
            code="mode_failed",
            message=f"Mode {failed.mode.value} could not be set up ({reason}); mode "
            f"{following.mode.value} is tried.",
            failed=failed.mode.value,
            next=following.mode.value,
        )

    plan = world.control.broadcast(run.plan() if world.is_main else None)
    planned = Mode(plan["mode"]) if plan else None
    strategies = candidates(config.distributed, world, planned, arithmetic.autocast_dtype)
    return spread_model(world, strategies, prepare, split, report)


def _default_step(parts: StepParts) -> Step:
    if parts.strategy.stages == 1:
        return StandardStep(parts)
    # Imported only here: torch's pipelining takes a while to load.
    from drumline.training.pipeline_step import PipelineStep

    return PipelineStep(parts)


def _agree_on_checkpoint(store: CheckpointStore, world: World, events: EventLog) -> Any:
    """The newest checkpoint that is whole: rank 0 looks, and all take its answer."""
    found = None
    if world.is_main:
        store.tidy()
        for path, checkpoint, reason in store.examine():
            if checkpoint is not None:
                found = checkpoint
                break
            events.emit("checkpoint_refused", path=str(path), reason=reason)
    return world.control.broadcast(found)


def _announce(session: Session, micro_batch: int, resumed_from: Path | None) -> None:
    world, config = session.world, session.config
    devices = world.control.gather(world.device_name)
    if world.is_main:
        session.events.emit(
            "run_started",
            name=config.name,
            task=config.task.name if config.task else "own model",
            steps=session.steps,
            step=session.progress.step,
            global_batch=config.global_batch,
            shares=list(session.shares),
            micro_batch=micro_batch,
            world_size=world.size,
            devices=devices,
            mode=session.strategy.mode.value,
            backend=world.backend,
            precision=config.precision.value,
            parameters=sum(p.numel() for p in session.model.parameters()),
            resumed_from=None if resumed_from is None else str(resumed_from),
        )
