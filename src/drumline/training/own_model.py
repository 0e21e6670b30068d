"""A task from a user's own model, data set and loss function, so that a script needs no class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from drumline.errors import BadInput
from drumline.training.order import SampleOrder
from drumline.training.source import MapDataset, MapSource, Source
from drumline.training.task import Losses, Task

LossFunction = Callable[[nn.Module, Any], Tensor]
EvaluateFunction = Callable[[nn.Module], dict[str, float]]


class OwnModelTask(Task):
    """A model, a map-style data set, and a function that gives the loss of each sample.

    Args:
        model: The model, or a function that builds it. A function is called with torch's
            generators seeded from the config; of models given ready, rank 0's weights are used.
        data: A map-style data set.
        loss: `loss(model, batch)` gives the losses of the samples, shape [samples]. Not their
            mean: only with one value a sample can unequal shares be exact.
        evaluate: `evaluate(model)` gives metrics; it must give the same on every rank.
    """

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        data: MapDataset,
        loss: LossFunction,
        evaluate: EvaluateFunction | None = None,
    ) -> None:
        self._model, self._data, self._loss, self._evaluate = model, data, loss, evaluate

    def build_model(self) -> nn.Module:
        """The model given, or built."""
        return self._model if isinstance(self._model, nn.Module) else self._model()

    def build_source(self) -> Source:
        """The data in the run's order."""
        config = self.setup_info.config
        if len(self._data) == 0:
            raise BadInput("The data set is empty.", remedy="Give one with samples.")
        return MapSource(
            self._data,
            SampleOrder(len(self._data), config.seed),
            epoch_end=config.epoch_end,
            pin_memory=self.world.device.type == "cuda",
        )

    def loss(self, model: nn.Module, batch: Any) -> Losses:
        """The sum of the samples' losses."""
        losses = self._loss(model, batch)
        if not isinstance(losses, Tensor) or losses.dim() != 1:
            shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise BadInput(
                f"The loss function gave {shape}, not one loss a sample.",
                remedy='Return a tensor of shape [samples], for example with reduction="none".',
            )
        return Losses(losses.sum())

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """The user's metrics."""
        if self._evaluate is None:
            return {}
        with torch.no_grad():
            return self._evaluate(model)
