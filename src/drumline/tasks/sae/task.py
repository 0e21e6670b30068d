"""Training of sparse autoencoders and transcoders, as a task of the one Trainer.

Everything the task decides (bias, scale, dead latents, thresholds, resampling) comes from the data
order or from sums over the global batch, so it is equal on all ranks and for any number of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from drumline.config import Mode
from drumline.errors import BadInput
from drumline.tasks.sae.build import build_sae
from drumline.tasks.sae.config import BY_COUNT, SAETaskConfig
from drumline.tasks.sae.data import Rows, open_rows
from drumline.tasks.sae.evaluation import evaluate_held_out
from drumline.tasks.sae.model import SAE, SAEOutput
from drumline.tasks.sae.resampling import Resampler
from drumline.tasks.sae.statistics import (
    LatentActivity,
    geometric_median,
    input_scale,
    of_rank_zero,
)
from drumline.tasks.sae.topk import BatchTopKSAE
from drumline.training.order import SampleOrder
from drumline.training.source import MapSource, Source
from drumline.training.task import Losses, Setup, Task

if TYPE_CHECKING:
    from drumline.tasks.sae.explained_loss import ExplainedLoss


class SAETask(Task):
    """An SAE on cached activations.

    Args:
        open_data: Opens the rows that a config names.
    """

    config: SAETaskConfig
    rows: Rows
    activity: LatentActivity
    mean: Tensor

    def __init__(self, open_data: Callable[[SAETaskConfig], Rows] = open_rows) -> None:
        self.open_data = open_data
        self.step = 0
        self.target_scale = 1.0

    def setup(self, setup: Setup) -> None:
        """Open the activations."""
        super().setup(setup)
        self.config = cast(SAETaskConfig, setup.config.task)
        self.seed = setup.config.seed
        self.rows = self.open_data(self.config)

    def build_model(self) -> SAE:
        """The SAE, its latents counted as alive."""
        targets = self.rows.targets
        d_out = None if targets is None else targets.width
        sae = build_sae(self.config, self.rows.inputs.width, d_out)
        self._take_activity(torch.zeros(sae.latents, dtype=torch.int64))
        self.mean = torch.zeros(sae.size.d_out, dtype=torch.float64, device=self.world.device)
        return sae

    def check_mode(self, mode: Mode) -> None:
        """DataParallel would put the counts of latents side by side instead of adding them."""
        if mode is Mode.DATAPARALLEL:
            raise BadInput(
                "The sae task cannot be trained in mode dataparallel: what a forward gives is not "
                "all per sample.",
                remedy="Use distributed.mode=distributed, which is also faster.",
            )

    def build_source(self) -> Source:
        """All rows but the held-out ones, in the run's order."""
        order = SampleOrder(len(self.rows), self.seed)
        epoch_end = self.setup_info.config.epoch_end
        pin = self.world.device.type == "cuda"
        if pin:
            self.rows.pin()  # so that the loader need not copy what was read
        return MapSource(self.rows, order, epoch_end=epoch_end, collated=True, pin_memory=pin)

    def initialise(self, model: nn.Module) -> None:
        """Scale, decoder bias and the targets' mean from the first samples of the order."""
        sae = cast(SAE, model)
        inputs, targets = self.rows.pairs(self.rows.first(self.config.bias_samples, self.seed))
        seen = inputs.to(torch.float64)
        wanted = seen if targets is None else targets.to(torch.float64)
        scales = (
            torch.tensor([input_scale(seen), input_scale(wanted)], dtype=torch.float64)
            if self.config.scale_inputs
            else torch.ones(2, dtype=torch.float64)
        )
        for_inputs, for_targets = of_rank_zero(self.world, scales).tolist()
        sae.set_scales(for_inputs, for_targets)
        self.target_scale = for_targets
        wanted = wanted * for_targets
        if self.config.bias_init == "geometric_median":
            sae.start_bias(of_rank_zero(self.world, geometric_median(wanted)))
        self.mean = of_rank_zero(self.world, wanted.mean(dim=0))

    def loss(self, model: nn.Module, batch: Any) -> Losses:
        """Sum over the samples of the architecture's loss."""
        inputs, targets = batch if isinstance(batch, tuple | list) else (batch, None)
        sparsity = self.config.sparsity_coefficient(self.step)
        dead = self.activity.dead.numbers
        output: SAEOutput = model(
            inputs, targets, dead=dead() if _is_compiled(model) else dead, sparsity=sparsity
        )
        sums = {"fired": output.fired}
        if self.config.architecture == "batchtopk":
            sums["smallest_kept"] = output.smallest_kept
        metrics = self._metric_sums(output, inputs if targets is None else targets)
        return Losses(output.loss.sum(), metrics, sums)

    def derive_metrics(self, means: dict[str, float]) -> dict[str, float]:
        """The fraction of variance unexplained, about the mean of the first samples."""
        shown = {}
        if means.get("variance", 0.0) > 0:
            shown["fvu"] = means["squared_error"] / means["variance"]
        order = ("l0", "dead_fraction", "sparsity", "auxiliary")
        return shown | {name: means[name] for name in order if name in means}

    def after_gradients(self, model: nn.Module) -> None:
        """Drop the part of the decoder's gradient that only changes its norms."""
        if self.config.decoder_norm:
            cast(SAE, model).drop_parallel_gradient()

    def after_step(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        sums: Mapping[str, Tensor],
        count: int,
    ) -> None:
        """Renormalise the decoder, count silence, follow the threshold, resample when due."""
        sae = cast(SAE, model)
        if self.config.decoder_norm:
            sae.normalise_decoder()
        if isinstance(sae, BatchTopKSAE):
            sae.follow_threshold(sums["smallest_kept"])
        self.activity.update(sums["fired"], count)
        self.step += 1
        if self._resampling_due() and len(self.activity.dead.numbers()):
            self._resample(sae, optimizer)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Held-out metrics, dead latents, and explained loss where the config asks for it."""
        sae = cast(SAE, model)
        metrics = evaluate_held_out(sae, self.rows, self.world, self.config.evaluation)
        metrics["dead_latents"] = float(self.activity.dead.count)
        metrics["dead_fraction"] = metrics["dead_latents"] / sae.latents
        if self.config.explained_loss is not None:
            metrics.update(self._language_model_loss.measure(sae))
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Steps taken, the silence of each latent, and the targets' mean and scale."""
        return {
            "step": self.step,
            "target_scale": self.target_scale,
            "mean": self.mean.cpu().clone(),
            "silent_for": self.activity.silent_for.cpu().clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.step = int(state["step"])
        self.target_scale = float(state["target_scale"])
        self.mean = state["mean"].to(self.world.device, copy=True)
        self._take_activity(state["silent_for"])

    @cached_property
    def _language_model_loss(self) -> ExplainedLoss:
        """The language model and its text, loaded at the first evaluation and kept."""
        from drumline.tasks.sae.explained_loss import ExplainedLoss

        assert self.config.explained_loss is not None
        facts = getattr(self.rows.inputs, "facts", {})
        return ExplainedLoss(
            self.config.explained_loss,
            self.world,
            drop_first=bool(facts.get("drop_first", True)),
            outlier_ratio=facts.get("outlier_ratio"),
        )

    def _take_activity(self, silent_for: Tensor) -> None:
        on_device = silent_for.to(self.world.device, copy=True)
        self.activity = LatentActivity(on_device, self.config.dead_after_samples)
        self.activity.dead.numbers()  # now: a loss may be traced where values cannot be asked for

    def _metric_sums(self, output: SAEOutput, targets: Tensor) -> dict[str, Tensor]:
        dtype = output.loss.dtype
        distance = targets.to(dtype) * self.target_scale - self.mean.to(dtype)
        sums = {
            "squared_error": output.squared_error.sum(dtype=torch.float64),
            "variance": torch.linalg.vector_norm(distance, dtype=torch.float64).square(),
            "l0": output.active.sum(dtype=torch.float64),
            "dead_fraction": self.activity.dead.count * (len(output.loss) / len(output.fired)),
        }
        if self.config.architecture in BY_COUNT:
            sums["auxiliary"] = output.auxiliary.sum(dtype=torch.float64)
        else:
            sums["sparsity"] = output.sparsity.sum(dtype=torch.float64)
        return sums

    def _resampling_due(self) -> bool:
        when = self.config.resampling
        if when.every_steps is None or self.step % when.every_steps:
            return False
        return when.until_step is None or self.step <= when.until_step

    def _resample(self, sae: SAE, optimizer: torch.optim.Optimizer) -> None:
        samples = self.config.resampling.samples
        resampler = Resampler(self.rows, self.world, self.seed, samples, self.granularity)
        sparsity = self.config.sparsity_coefficient(self.step)
        dead = self.activity.dead.numbers()
        resampler.resample(sae, optimizer, dead, self.step, sparsity)
        self.activity.revive(dead)


def _is_compiled(model: nn.Module) -> bool:
    """Whether a question to the device within the model would break a compiled graph."""
    return any(module._compiled_call_impl is not None for module in model.modules())
