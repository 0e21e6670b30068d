"""What is trained. A task brings the model, the data and the loss; the Trainer brings the loop.

The order of calls is: `setup`, `build_source`, `build_model`, on a fresh run `initialise`, then the
model is spread over the ranks, on a resumed run `load_state_dict`, then for each micro-batch
`loss`, and once a step `after_gradients` and `after_step`, and `evaluate` whenever the config says
so. Every rank makes the same calls in the same order, so a task may use collectives of its world in
all of them except `loss`, whose number of calls may differ between ranks. If `auto` has to try
another mode, it calls `build_model` and `initialise` again.

In the sharded modes the parameters of the unwrapped model are pieces (DTensor, cut along dim 0) in
`after_gradients` and `after_step`: arithmetic row by row works on them, single rows are changed
with `drumline.distributed.set_rows`, and a forward there needs `drumline.distributed.gathered`. In
a pipeline the parameters of other ranks' stages are on the meta device there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from drumline.distributed import cut_stages

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle

    from drumline.config import Mode, RunConfig
    from drumline.distributed import World
    from drumline.events import EventLog
    from drumline.training.source import Source
    from drumline.training.step import Step, StepParts


@dataclass
class Losses:
    """What one micro-batch gives. Everything is a sum over its samples, never a mean.

    Attributes:
        loss_sum: Scalar with gradient: the sum of the losses of the samples. The Trainer divides
            by the global count, so the result does not depend on shares or micro-batches.
        metric_sums: Detached scalars, summed over samples; shown divided by the count.
        step_sums: Detached tensors of any shape, summed over micro-batches and over all ranks at
            every step and handed to `after_step`: what the task must know globally, such as how
            often each latent fired.
    """

    loss_sum: Tensor
    metric_sums: Mapping[str, Tensor] = field(default_factory=dict)
    step_sums: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Setup:
    """What a task is told before anything else."""

    config: RunConfig
    world: World
    events: EventLog


class Task(ABC):
    """Base of all tasks; see the module's text for the order of calls."""

    setup_info: Setup

    def setup(self, setup: Setup) -> None:
        """Take the config and the world. A subclass that overrides this calls super() first."""
        self.setup_info = setup

    @property
    def world(self) -> World:
        """The world of this rank."""
        return self.setup_info.world

    @property
    def granularity(self) -> int:
        """See `TaskConfig.granularity`."""
        task = self.setup_info.config.task
        return task.granularity if task else 1

    @abstractmethod
    def build_model(self) -> nn.Module:
        """The model with its initial weights, on any device, equal on all ranks.

        The default generators are seeded from the run's seed before the call.
        """

    @abstractmethod
    def build_source(self) -> Source:
        """Where the samples come from; usually a `MapSource` on a data set."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> Losses:
        """Loss of one micro-batch. `model` is wrapped for the strategy: call it, do not reach in.

        Runs under autocast where the precision asks for it. On a GPU the next step's samples take
        the memory of these once the gradient is there: what is needed later must be a copy.
        """

    def check_mode(self, mode: Mode) -> None:
        """Refuse a mode that the task cannot be trained in.

        Raises:
            BadInput: With the reason.
        """
        del mode

    def shard_units(self, model: nn.Module) -> Sequence[nn.Module] | None:
        """Modules whose parameters a sharded mode gathers together, in the forward's order.

        Each must be called through its forward, and share no parameter with the rest. None: the
        entries of the model's lists of equal blocks.
        """
        del model
        return None

    def tensor_plan(self, model: nn.Module) -> Mapping[str, ParallelStyle] | None:
        """How hybrid's tensor axis splits layers: styles by module name, as in torch's
        `parallelize_module`. By default what the model's own `tensor_plan()` says, if it has one.
        """
        declared = getattr(model, "tensor_plan", None)
        return declared() if callable(declared) else None

    def pipeline_stages(self, model: nn.Module, count: int) -> Sequence[nn.Module] | None:
        """The model in `count` parts for hybrid's pipeline axis, in the forward's order.

        The first is called with what `loss` calls the model with, each other one with what the one
        before gave: one or several floating-point tensors with the samples in dim 0. What the last
        gives is what `loss` takes for the model's answer; with a pipeline `loss` calls the model
        once. Stages are made of the model's own modules and parameters, none of them in two.

        By default what the model's own `pipeline_stages(count)` gives, or for an `nn.Sequential`
        as many of its modules for each; see `drumline.distributed.cut_stages`.
        """
        declared = getattr(model, "pipeline_stages", None)
        if callable(declared):
            stages: Sequence[nn.Module] = declared(count)
            return stages
        return cut_stages(list(model), count) if isinstance(model, nn.Sequential) else None

    def initialise(self, model: nn.Module) -> None:
        """Set what depends on the data, on a fresh run, before the model is wrapped.

        Must give the same values on every rank and for every number of ranks.
        """

    def after_gradients(self, model: nn.Module) -> None:
        """Change gradients in place once they are final sums over all ranks, before clipping."""

    def after_step(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        sums: Mapping[str, Tensor],
        count: int,
    ) -> None:
        """Act on a step that was taken (not on a skipped one).

        Args:
            model: The unwrapped model, with new weights.
            optimizer: Its optimizer.
            sums: `Losses.step_sums` over all samples of the global batch.
            count: Samples in the global batch.
        """

    def build_step(self, parts: StepParts) -> Step | None:
        """A step of the task's own instead of `StandardStep`, under the same rules; see `step`."""
        del parts
        return None

    def derive_metrics(self, means: dict[str, float]) -> dict[str, float]:
        """Metrics to show from the means of `metric_sums` over samples: ratios, say."""
        return means

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Metrics of the unwrapped model, equal on all ranks. Called without gradients."""
        del model
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What must outlive the process besides model and optimizer: tensors and plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave, possibly on another number of ranks."""
        del state
