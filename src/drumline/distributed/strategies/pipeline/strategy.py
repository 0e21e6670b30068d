"""Mode `hybrid` with a pipeline axis: each rank holds some stages of the model.

Replicas of a stage work on different samples and sum their gradients once the schedule is through.
Single layers may be split over a tensor axis besides.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from drumline.config import DistributedConfig, Mode
from drumline.distributed.strategies.base import UNCUT, HasState, MakeOptimizer, Split, Strategy
from drumline.distributed.strategies.pieces import (
    clip_pieces,
    first_bad_piece,
    send_from_rank_zero,
    square_sum,
)
from drumline.distributed.strategies.pipeline import state
from drumline.distributed.strategies.pipeline.conveyor import Along, Conveyor
from drumline.distributed.strategies.pipeline.stages import Part, check_stages
from drumline.distributed.strategies.replicated import keeps_statistics
from drumline.distributed.strategies.summation import Channel, Summation
from drumline.distributed.strategies.tensor_axis import ONE_BY_ONE, check_plan, split_layers

if TYPE_CHECKING:
    from drumline.distributed.world import World


class Pipelined(Strategy):
    """A pipeline of stages, or several side by side.

    The unwrapped model keeps all its names; what other ranks hold of it is on the meta device.
    """

    mode = Mode.HYBRID
    lockstep = True

    def __init__(self, config: DistributedConfig, world: World) -> None:
        self.config, self.world = config, world
        self.stages = config.mesh.pipeline * config.pipeline.stages

    def check(self, model: nn.Module, split: Split) -> None:
        """The axes must fit the world, and the model must say how it is cut."""
        shape = self.config.mesh.shape(self.world.size)
        check_plan(shape.tensor, split.tensor_plan)
        check_stages(model, split.stages, self.stages)

    def place(self, model: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """Leave it where the task built it: only this rank's part goes to the device."""
        del device
        return model.to(dtype)

    def wrap(self, model: nn.Module, split: Split = UNCUT) -> nn.Module:
        """Keep this rank's stages, in place, and put them under a schedule."""
        world = self.world
        send_from_rank_zero(model, world.device)
        if world.tensor_size > 1:
            sizes = (world.pipeline_size, world.data_size, world.tensor_size)
            names = ("pipeline", "data", "tensor")
            mesh = init_device_mesh(world.device.type, sizes, mesh_dim_names=names)
            split_layers(model, mesh["tensor"], split.tensor_plan)
        mine = range(world.pipeline_rank, self.stages, world.pipeline_size)
        self.part = Part(model, split.stages or (), mine)
        self.part.keep(world.device)
        buffers = self.config.sync_buffers
        self._sends_buffers = keeps_statistics(model) if buffers is None else buffers
        self.model = model
        channel = Channel(world.data_group)
        self._summation = Summation(self.parameters(), world.device, channel=channel)
        along = Along(world.pipeline_rank, world.pipeline_size, world.pipeline_group, world.device)
        self._along = along
        return Conveyor(self.part.stages, along, self.config.pipeline, self.idle)

    def build_optimizer(
        self, kind: MakeOptimizer, parameters: list[nn.Parameter], options: dict[str, Any]
    ) -> torch.optim.Optimizer:
        """An optimizer over this rank's parameters, of which there may be none."""
        here = [parameter for parameter in parameters if not parameter.is_meta]
        if self.world.tensor_size > 1:
            options = {**options, **ONE_BY_ONE}
        return kind([{"params": here}], **options)

    def accumulate(self) -> AbstractContextManager[None]:
        """A backward sends nothing but to the stage before."""
        return nullcontext()

    def reduce_gradients(self) -> None:
        """Sum over the replicas of this rank's stages, and take the first one's buffers."""
        group = self.world.data_group
        self._summation.all_at_once()
        if self._sends_buffers:
            for buffer in self.model.buffers():
                if not buffer.is_meta:
                    dist.broadcast(buffer, group=group, group_src=0)

    def parameters(self) -> list[nn.Parameter]:
        """Parameters of this rank that are trained, each once."""
        return [p for p in super().parameters() if not p.is_meta]

    def gradient_norm(self) -> Tensor:
        """Over all stages; each parameter is in one."""
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        total = square_sum(gradients, self.world.device)
        dist.all_reduce(total, group=self.world.pipeline_group)
        dtype = next((p.dtype for p in self.model.parameters()), torch.float32)
        return total.sqrt().to(dtype)

    def clip(self, max_norm: float, norm: Tensor) -> None:
        """Scale this rank's gradients, as torch does whole ones."""
        clip_pieces(self.gradients(), max_norm, norm)

    def first_bad_gradient(self) -> str | None:
        """The first in the order of the whole model."""
        return first_bad_piece(self.model, self.world.control)

    def gathered(self) -> AbstractContextManager[None]:
        """All weights on every rank, which needs memory for the whole model."""
        ranks = self._along.size
        return self.part.whole(
            self.world.device, lambda stage, tensor: self._along.broadcast(tensor, stage % ranks)
        )

    def weights(self) -> HasState:
        """Put together tensor by tensor, on rank 0."""
        return state.weights(self.part, self.world, self._along.size)

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Put together on rank 0, empty elsewhere."""
        return state.optimizer_state(optimizer, self.part, self.world)

    def load_optimizer_state(
        self, optimizer: torch.optim.Optimizer, state_: dict[str, Any]
    ) -> None:
        """Take this rank's part."""
        state.load_optimizer_state(optimizer, self.part, state_)

    def teardown(self) -> None:
        """Let go of the model."""
        for name in ("model", "part"):
            self.__dict__.pop(name, None)
