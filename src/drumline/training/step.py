"""One optimizer step: forward and backward by micro-batches, one agreed decision, then the update.

This is the default of the Trainer's Step seam. A task may bring another (a fused kernel, say) that
keeps the same rules: gradients are sums over the global batch divided by its true count, a
non-finite gradient on any rank skips the step on all, and nothing depends on micro-batches.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from drumline.distributed import Strategy, World
from drumline.events import EventLog
from drumline.planning.shares import cut_micro_batches
from drumline.training.batches import narrow
from drumline.training.delivery import Delivery
from drumline.training.lockstep import Company
from drumline.training.noise import seed_generators
from drumline.training.order import mix
from drumline.training.precision import Arithmetic, LossScaler
from drumline.training.source import StepBatch
from drumline.training.stopwatch import Stopwatch
from drumline.training.task import Losses, Task

CAREFUL_STEPS = 2
"""Steps after which memory has shown its peak; see `StandardStep`."""


@dataclass
class StepOutcome:
    """What a step did. Sums are this rank's own; all else is the same on all ranks.

    `finite` and `loss`, the mean over the global batch, also speak of steps that were not taken.
    """

    taken: bool
    sums: Mapping[str, Tensor] = field(default_factory=dict)
    gradient_norm: Tensor | None = None
    reason: str = ""
    finite: bool = True
    loss: float = math.nan


@dataclass(frozen=True)
class Verdict:
    """What becomes of a finite gradient: whether the update is made, and a bound on its norm."""

    take: bool = True
    max_norm: float = math.inf
    reason: str = ""


class Gate:
    """Judges every update before it is made. This one lets all pass."""

    def judge(self, loss: float, norm: float) -> Verdict:
        """From the global mean loss and gradient norm, both finite and equal on all ranks."""
        del loss, norm
        return Verdict()


@dataclass(frozen=True)
class StepParts:
    """What a step works with. `wrapped` is `model` as the strategy spreads it."""

    task: Task
    model: nn.Module
    wrapped: nn.Module
    optimizer: torch.optim.Optimizer
    strategy: Strategy
    world: World
    arithmetic: Arithmetic
    scaler: LossScaler
    events: EventLog
    seed: int
    micro_batch: int
    clip_norm: float | None


class Step(ABC):
    """Takes one optimizer step from one batch.

    `gate` is asked before an update. A step of a task's own that cannot ask says so by `gated`.
    `stopwatch`, where there is one, can be armed to time the rank's own work in the next step.
    """

    gated: ClassVar[bool] = False
    gate: Gate = Gate()
    stopwatch: Stopwatch | None = None

    @abstractmethod
    def take(self, batch: StepBatch, index: int) -> StepOutcome:
        """Take step `index` (from 0); the learning rate is already set in the optimizer."""

    def take_care(self) -> None:
        """The sizes of shares have changed: memory has yet to show its peak."""


class StandardStep(Step):
    """Forward, loss, backward, sum, clip, optimizer, for any model.

    The first steps are *careful*: all micro-batches only accumulate, the ranks vote on whether all
    of them fitted, and the gradients are summed afterwards. If one ran out of memory, all halve
    the micro-batch and take the same step again. After that the last backward sums gradients while
    it runs, and an out-of-memory error ends the attempt. Where a forward is collective there are no
    careful steps, and ranks with fewer micro-batches run passes that change nothing.

    A step whose stopwatch is armed is careful, too: until it sums, a rank waits for nobody.
    """

    gated = True

    def __init__(self, parts: StepParts) -> None:
        self.task, self.model, self.wrapped = parts.task, parts.model, parts.wrapped
        self.optimizer, self.strategy = parts.optimizer, parts.strategy
        self.world, self.arithmetic, self.scaler = parts.world, parts.arithmetic, parts.scaler
        self.events, self.seed = parts.events, parts.seed
        self.micro_batch, self.clip_norm = parts.micro_batch, parts.clip_norm
        self._careful_left = CAREFUL_STEPS
        self._lockstep, self._unprimed = parts.strategy.lockstep, parts.strategy.primes
        self._company: Company | None = None
        if self._lockstep or self._unprimed:
            self._company = Company(parts.world, parts.task.granularity)
        self._delivery = Delivery(parts.world.device)
        self._watch = Stopwatch(parts.world.device)
        self.stopwatch = None if self._lockstep else self._watch

    def take_care(self) -> None:
        """Be careful for some steps."""
        self._careful_left = CAREFUL_STEPS

    def take(self, batch: StepBatch, index: int) -> StepOutcome:
        """One step; see the class."""
        if self._watch.armed:
            self.world.barrier("timed step")  # a forward that sends buffers waits for rank 0
            self._watch.start()
        data = self._delivery.bring(batch.data)
        if self._company is not None:
            self._company.follow(batch, data)
        if self._unprimed:
            self._keep_step()
            self._unprimed = False
        late = self._careful_left > 0 or 0 in batch.counts or not self.strategy.overlaps
        careful = (late or self._watch.armed) and not self._lockstep
        sums = self._accumulate(data, batch, index, careful)
        while sums is None:
            self._halve(index)
            self._watch.cancel()
            sums = self._accumulate(data, batch, index, careful)
        self._delivery.release()
        self._careful_left = max(0, self._careful_left - 1)
        return self._update(batch, sums)

    def _accumulate(
        self, data: Any, batch: StepBatch, index: int, careful: bool
    ) -> dict[str, dict[str, Tensor]] | None:
        """Gradients over the whole global batch, in place; None if a rank had no memory for it."""
        self.optimizer.zero_grad(set_to_none=True)
        if not careful:
            return self._backwards(data, batch, index, overlap=True)
        sums: dict[str, dict[str, Tensor]] | None = None
        if not batch.count:
            self.strategy.absent()
        try:
            sums = self._backwards(data, batch, index, overlap=False)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        self._watch.stop()
        if self.world.control.any(sums is None):
            return None
        self.strategy.reduce_gradients()
        return sums

    def _backwards(
        self, data: Any, batch: StepBatch, index: int, *, overlap: bool
    ) -> dict[str, dict[str, Tensor]]:
        sums: dict[str, dict[str, Tensor]] = {"metric": {}, "step": {}}
        sizes = cut_micro_batches(batch.count, self.micro_batch, self.task.granularity)
        passes = len(sizes)
        if self._lockstep and self._company is not None:
            passes = self._company.passes(batch, self.micro_batch)
        start = 0
        for number in range(passes):
            last = overlap and number == passes - 1
            with nullcontext() if last else self.strategy.accumulate():
                if number >= len(sizes):
                    self._keep_step()
                    continue
                micro = narrow(data, start, sizes[number])
                seed_micro_batch(self.seed, index, batch.first + start)
                self._backward(micro, batch.global_count, sums)
                start += sizes[number]
        return sums

    def _keep_step(self) -> None:
        """A pass that changes nothing: the other ranks need it, or the strategy does."""
        assert self._company is not None
        with self.strategy.idle():
            with self.arithmetic.autocast():
                losses = self.task.loss(self.wrapped, self._company.filler)
            torch.autograd.backward(losses.loss_sum * 0.0)

    def _backward(self, micro: Any, global_count: int, sums: dict[str, dict[str, Tensor]]) -> None:
        with self.arithmetic.autocast():
            losses = self.task.loss(self.wrapped, micro)
        torch.autograd.backward(losses.loss_sum * (self.scaler.scale / global_count))
        add_sums(sums["metric"], metric_sums(losses))
        add_sums(sums["step"], losses.step_sums)

    def _update(self, batch: StepBatch, sums: dict[str, dict[str, Tensor]]) -> StepOutcome:
        gradients = self.strategy.gradients()
        if self.scaler.scale != 1.0 and gradients:
            torch._foreach_mul_(gradients, 1.0 / self.scaler.scale)
        self.task.after_gradients(self.model)
        norm = self.strategy.gradient_norm()
        facts, step_sums = self._summed(self._facts(sums["metric"], norm), sums["step"], batch)
        loss, global_norm, finite = self._agree(batch, facts)
        self.scaler.update(finite)
        if not finite:
            reason = self._first_bad_parameter(loss)
            return StepOutcome(False, {}, norm, reason, finite, loss)
        verdict = self.gate.judge(loss, global_norm)
        if not verdict.take:
            return StepOutcome(False, {}, norm, verdict.reason, finite, loss)
        bound = min(verdict.max_norm, self.clip_norm or math.inf)
        if bound < math.inf:
            self.strategy.clip(bound, norm)
        self.optimizer.step()
        self.task.after_step(self.model, self.optimizer, step_sums, batch.global_count)
        return StepOutcome(True, sums["metric"], norm, loss=loss)

    def _facts(self, sums: Mapping[str, Tensor], norm: Tensor) -> Tensor:
        """This rank's sum of losses and its norm, float64 [2]."""
        norm = norm.to(self.world.device, torch.float64)
        return torch.stack([sums["loss"] if "loss" in sums else torch.zeros_like(norm), norm])

    def _summed(
        self, facts: Tensor, local: dict[str, Tensor], batch: StepBatch
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Facts and step sums over all ranks; what is of one type in one collective.

        The sums are copies: what a task sums may be one of its metrics, too, and those are this
        rank's own.
        """
        local = self._known_everywhere(local, batch)
        alike = [name for name in sorted(local) if local[name].dtype is facts.dtype]
        together = torch.cat([facts, *(local[name].reshape(-1) for name in alike)])
        self.world.all_reduce(together)
        sizes = [len(facts), *(local[name].numel() for name in alike)]
        agreed, *parts = torch.split(together, sizes)
        found = {name: part.view_as(local[name]) for name, part in zip(alike, parts, strict=True)}
        for name in sorted(local.keys() - found.keys()):
            found[name] = self.world.all_reduce(local[name].clone())
        return agreed, found

    def _agree(self, batch: StepBatch, facts: Tensor) -> tuple[float, float, bool]:
        """Global mean loss, gradient norm, and whether all was finite: one rank's NaN or infinity
        is still one in a sum.
        """
        loss, norms = facts.tolist()
        finite = math.isfinite(loss) and math.isfinite(norms)
        return loss / batch.global_count, norms / self.world.data_size, finite

    def _known_everywhere(self, local: dict[str, Tensor], batch: StepBatch) -> dict[str, Tensor]:
        """Step sums with their shapes on a rank without samples, too, which has none."""
        if 0 not in batch.counts:
            return local
        specs = self.world.control.gather({k: (v.shape, v.dtype) for k, v in local.items()})
        known = next(spec for spec in specs if spec or not any(specs))
        return local or {
            name: torch.zeros(shape, dtype=dtype, device=self.world.device)
            for name, (shape, dtype) in known.items()
        }

    def _first_bad_parameter(self, loss: float) -> str:
        name = self.strategy.first_bad_gradient()
        if name is not None:
            return f"the gradient of {name} is not finite"
        if not math.isfinite(loss):
            return "the loss is not finite"
        return "the norm of the whole gradient is not finite"

    def _halve(self, index: int) -> None:
        least = self.task.granularity
        if self.micro_batch <= least:
            raise torch.OutOfMemoryError(
                f"a micro-batch of {self.micro_batch} does not fit, and it cannot be halved"
            )
        self.optimizer.zero_grad(set_to_none=True)
        if self.world.device.type == "cuda":
            torch.cuda.empty_cache()
        self.micro_batch = max(least, self.micro_batch // 2)
        self.take_care()
        if self.world.is_main:
            self.events.emit(
                "warning",
                code="out_of_memory",
                message=f"Out of memory at step {index}: all ranks go on with micro-batches of "
                f"{self.micro_batch}; the result does not change.",
                micro_batch=self.micro_batch,
            )


def seed_micro_batch(seed: int, index: int, position: int, stage: int | None = None) -> None:
    """Seed torch for the micro-batch that begins at a position of step `index`.

    Args:
        seed: The run's.
        index: The step.
        position: Of the micro-batch's first sample in the step.
        stage: Of a pipeline: each draws for itself, whenever its turn is.
    """
    numbers = (index, position) if stage is None else (index, position, stage + 1)
    seed_generators(mix(seed, *numbers) >> 1)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether torch ran out of device or host memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def metric_sums(losses: Losses) -> dict[str, Tensor]:
    """What is shown of a micro-batch, with its loss, which ranks agree on in float64."""
    return {"loss": losses.loss_sum.detach().to(torch.float64), **losses.metric_sums}


def blocking_bytes(losses: Losses) -> tuple[int, ...]:
    """Bytes of the collectives that a step makes besides those of its gradients: facts and the
    step sums of their type in one, each other in one of its own.
    """
    together, apart = 2 * torch.float64.itemsize, []
    for value in losses.step_sums.values():
        if value.dtype is torch.float64:
            together += value.nbytes
        else:
            apart.append(value.nbytes)
    return together, *apart


def add_sums(total: dict[str, Tensor], more: Mapping[str, Tensor]) -> None:
    """Add to the sums of the same names, on a GPU in one kernel where they are of one type."""
    known = [name for name in more if name in total]
    if known:
        sums = torch._foreach_add([total[name] for name in known], [more[name] for name in known])
        total.update(zip(known, sums, strict=True))
    total.update({name: value for name, value in more.items() if name not in total})
