"""A user's own task: layers of `width` x `width` weights, as many as its config says."""

from __future__ import annotations

from typing import Any

import torch
from stacked_config import StackedConfig
from torch import nn

from drumline.training import Task
from drumline.training.order import SampleOrder
from drumline.training.source import MapSource, Source
from drumline.training.task import Losses


class Stacked(Task):
    @property
    def keys(self) -> StackedConfig:
        found = self.setup_info.config.task
        assert isinstance(found, StackedConfig)
        return found

    def build_model(self) -> nn.Module:
        width = self.keys.width
        return nn.Sequential(
            *(nn.Linear(width, width, bias=False) for _ in range(self.keys.layers))
        )

    def build_source(self) -> Source:
        return MapSource(torch.ones(64, self.keys.width), SampleOrder(64, 0))  # type: ignore[arg-type]

    def loss(self, model: nn.Module, batch: Any) -> Losses:
        return Losses(model(batch).square().sum())
