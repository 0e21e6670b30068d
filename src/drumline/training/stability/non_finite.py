"""Steps that were skipped because something was not finite: what it was, and what follows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from drumline.config import StabilityConfig
from drumline.distributed.synchronised_norm import SynchronisedBatchNorm
from drumline.planning.shares import cut_micro_batches
from drumline.training.batches import narrow, to_device
from drumline.training.precision import Arithmetic
from drumline.training.stability.diagnosis import BadTensor, first_bad_tensor
from drumline.training.stability.finding import Finding
from drumline.training.stability.policies import Policies
from drumline.training.stability.tensors import is_sharded
from drumline.training.step import is_out_of_memory, seed_micro_batch
from drumline.training.watchers import Watcher

if TYPE_CHECKING:
    from drumline.training.session import Session
    from drumline.training.source import StepBatch
    from drumline.training.step import StepOutcome

PATIENCE = 3
"""With a loss scale, so many overflows of the gradient in a row are its way to find its level."""


class NonFiniteWatcher(Watcher):
    """Names the first bad tensor of a non-finite step, then applies the policy."""

    def __init__(self, config: StabilityConfig, policies: Policies) -> None:
        self.config, self.policies = config, policies
        self.diagnoses = 0
        self._scale = 1.0

    def before_step(self, session: Session, batch: StepBatch) -> None:
        """Remember the loss scale, which a bad step lowers."""
        del batch
        self._scale = session.scaler.scale

    def after_step(self, session: Session, batch: StepBatch, outcome: StepOutcome) -> None:
        """Diagnose and act; the reason of the outcome becomes the diagnosis."""
        if outcome.finite or self._is_scaling(session, outcome):
            return
        found = self._diagnose(session, batch)
        if found is not None:
            rank, bad = found
            outcome.reason = f"on rank {rank} {bad}"
            if session.world.is_main:
                step = session.progress.step
                session.events.emit("non_finite", step=step, **{**asdict(bad), "rank": rank})
        module = found[1].module if found else None
        known = module is not None and module in dict(session.model.named_modules())
        message = f"Step {session.progress.step} was not finite: {outcome.reason}"
        self.policies.apply(
            session, Finding("non_finite", message, module=module if known else None)
        )

    def state_dict(self) -> dict[str, Any]:
        """How many diagnoses were made."""
        return {"diagnoses": self.diagnoses}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.diagnoses = int(state["diagnoses"])

    def _is_scaling(self, session: Session, outcome: StepOutcome) -> bool:
        in_a_row = session.progress.skipped_in_a_row
        return self._scale > 1.0 and math.isfinite(outcome.loss) and in_a_row < PATIENCE

    def _diagnose(self, session: Session, batch: StepBatch) -> tuple[int, BadTensor] | None:
        """The first bad tensor of the lowest rank that had one, known to all."""
        last = session.progress.skipped_in_a_row >= session.config.max_skipped_steps
        if (self.diagnoses >= self.config.max_diagnoses and not last) or not can_repeat(
            session.model
        ):
            return None
        self.diagnoses += 1
        bad = repeat(session, batch, self._scale) if batch.count else None
        ranks = session.world.control.gather(None if bad is None else asdict(bad))
        return next(((rank, BadTensor(**b)) for rank, b in enumerate(ranks) if b), None)


def can_repeat(model: nn.Module) -> bool:
    """Whether one rank alone can run the model: no module talks to other ranks."""
    synced = any(
        isinstance(module, nn.SyncBatchNorm | SynchronisedBatchNorm) for module in model.modules()
    )
    return not synced and not is_sharded(model)


def repeat(session: Session, batch: StepBatch, scale: float) -> BadTensor | None:
    """Run this rank's share of the last step again, observed. None if memory does not allow it."""
    try:
        losses = _losses(session, batch, scale)
        return first_bad_tensor(session.model, losses, device=session.world.device)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return None


def _losses(session: Session, batch: StepBatch, scale: float) -> Iterator[Callable[[], Tensor]]:
    """The scaled loss of each micro-batch of this rank, with the seeds that the step had."""
    arithmetic = Arithmetic(session.config.precision, session.world.device)
    index = session.progress.step - 1

    def loss(micro: Any, position: int) -> Tensor:
        seed_micro_batch(session.config.seed, index, position)
        with torch.enable_grad(), arithmetic.autocast():
            losses = session.task.loss(session.model, micro)
        return losses.loss_sum * (scale / batch.global_count)

    data = to_device(batch.data, session.world.device)
    largest = getattr(session.step, "micro_batch", session.config.micro_batch) or batch.count
    start = 0
    for size in cut_micro_batches(batch.count, largest, session.task.granularity):
        yield partial(loss, narrow(data, start, size), batch.first + start)
        start += size
