"""Modes `sharded` and `hybrid`: every rank keeps a part of every parameter, through FSDP2.

Weights are gathered unit by unit for each forward and backward, gradients are summed and cut again.
Forward and backward are therefore collective, and all ranks run the same number of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from drumline.config import DistributedConfig, Mode
from drumline.distributed.strategies.base import UNCUT, HasState, MakeOptimizer, Split, Strategy
from drumline.distributed.strategies.gather import RESHARDS, gathered
from drumline.distributed.strategies.optimizer_state import plain_name, state_by_name
from drumline.distributed.strategies.pieces import (
    Whole,
    clip_pieces,
    first_bad_piece,
    send_from_rank_zero,
    square_sum,
    whole,
)
from drumline.distributed.strategies.replicated import keeps_statistics
from drumline.distributed.strategies.tensor_axis import ONE_BY_ONE, check_plan, split_layers
from drumline.distributed.strategies.units import find_units
from drumline.distributed.synchronised_norm import synchronise_norms
from drumline.errors import BadInput

if TYPE_CHECKING:
    from drumline.distributed.world import World


class Sharded(Strategy):
    """Mode `sharded`: one replica, cut over all ranks.

    Args:
        config: How the run is spread.
        world: The world of this rank.
        low_precision: The run's bfloat16 or float16, for `gather_dtype: precision`.
    """

    mode = Mode.SHARDED
    lockstep = True

    def __init__(
        self, config: DistributedConfig, world: World, low_precision: torch.dtype | None = None
    ) -> None:
        self.config, self.world, self._low_precision = config, world, low_precision

    def mesh(self) -> DeviceMesh:
        """Over whom parameters are cut; of two axes, the first is of replicas."""
        return init_device_mesh(
            self.world.device.type, (self.world.size,), mesh_dim_names=("shard",)
        )

    def check(self, model: nn.Module, split: Split) -> None:
        """Units must not share parameters, and scalars cannot be cut."""
        find_units(model, split.units)
        for name, parameter in model.named_parameters():
            if parameter.dim() == 0:
                raise BadInput(
                    f"The parameter {name} is a scalar, which cannot be sharded.",
                    remedy="Give it the shape [1], or use mode distributed.",
                )

    def place(self, model: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """Leave it where the task built it: each unit goes to the device as it is cut."""
        del device
        return model.to(dtype)

    def wrap(self, model: nn.Module, split: Split = UNCUT) -> nn.Module:
        """Cut the model in place. Every rank cuts its own copy: they must be equal."""
        options = self.config.sharded
        if self.config.sync_batchnorm:
            synchronise_norms(model)
        send_from_rank_zero(model, self.world.device)
        keep_unflattened(model)
        mesh = self.mesh()
        self.split_layers(model, split)
        units = find_units(model, split.units)
        if options.activation_checkpointing:
            _recompute(model, units)
            units = [unit for unit in model.modules() if _wraps_one_of(unit, units)]
        shared: dict[str, Any] = {
            "mesh": mesh,
            "mp_policy": self._precision(),
            "offload_policy": self._offload(),
        }
        for unit in units:
            fully_shard(unit, reshard_after_forward=options.reshard_after_forward, **shared)
            setattr(unit, RESHARDS, options.reshard_after_forward)
        fully_shard(model, reshard_after_forward=False, **shared)
        self.model = model
        self._sum_gradients()
        buffers = self.config.sync_buffers
        if keeps_statistics(model) if buffers is None else buffers:
            model.register_forward_pre_hook(_send_buffers)
        return model

    def split_layers(self, model: nn.Module, split: Split) -> None:
        """Split single layers before parameters are cut; hybrid does."""

    def _sum_gradients(self) -> None:
        for part in self.model.modules():
            if isinstance(part, FSDPModule):
                part.set_gradient_divide_factor(1.0)
                part.set_force_sum_reduction_for_comms(True)

    def _precision(self) -> MixedPrecisionPolicy:
        options = self.config.sharded
        gathered_as = self._low_precision if options.gather_dtype == "precision" else None
        reduced_as = torch.bfloat16 if options.reduce_dtype == "bf16" else None
        if gathered_as is not None and reduced_as is None:
            reduced_as = torch.float32
        return MixedPrecisionPolicy(param_dtype=gathered_as, reduce_dtype=reduced_as)

    def _offload(self) -> OffloadPolicy:
        if not self.config.sharded.cpu_offload:
            return OffloadPolicy()
        return CPUOffloadPolicy(pin_memory=self.world.device.type == "cuda")

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Gradients stay whole and local."""
        root = self._root()
        root.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            root.set_requires_gradient_sync(True)

    def reduce_gradients(self) -> None:
        """Never needed: all ranks take part in every last backward."""
        raise NotImplementedError("a sharded model sums its gradients in the backward")

    def gradient_norm(self) -> Tensor:
        """From each rank's pieces, added up in float64 over the ranks that hold different ones."""
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        total = square_sum(gradients, self.world.device)
        dtype = next((p.dtype for p in self.parameters()), torch.float32)
        return total.sqrt().to(dtype)

    def clip(self, max_norm: float, norm: Tensor) -> None:
        """Scale this rank's pieces, as torch does whole gradients."""
        clip_pieces(self.gradients(), max_norm, norm)

    def first_bad_gradient(self) -> str | None:
        """The first of the pieces of all ranks."""
        name = first_bad_piece(self.model, self.world.control)
        return None if name is None else plain_name(name)

    def gathered(self) -> AbstractContextManager[None]:
        """All weights on every rank."""
        return gathered(self.model)

    def weights(self) -> HasState:
        """Put together unit by unit, on rank 0; tied weights stay one tensor."""
        known: dict[int, Tensor] = {}
        tensors: dict[str, Tensor] = {}
        for name, tensor in self.model.state_dict(keep_vars=True).items():
            if id(tensor) not in known:
                known[id(tensor)] = whole(tensor.detach(), keep=self.world.is_main)
            if self.world.is_main:
                tensors[plain_name(name)] = known[id(tensor)]
        return Whole(tensors)

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Put together on rank 0, empty elsewhere."""
        return state_by_name(optimizer, self.model, keep=self.world.is_main)

    def teardown(self) -> None:
        """Let go of the model."""
        self.__dict__.pop("model", None)

    def _root(self) -> FSDPModule:
        assert isinstance(self.model, FSDPModule)
        return self.model


class Hybrid(Sharded):
    """Mode `hybrid`: replicas, each cut over some ranks (HSDP), its layers split over others.

    Neighbouring ranks are of one tensor group: they work on the same samples.
    """

    mode = Mode.HYBRID

    def mesh(self) -> DeviceMesh:
        """Replicas x shards, of the ranks that hold this rank's part of the layers."""
        shape = self.config.mesh.shape(self.world.size)
        names = ("data", "shard", "tensor")
        sizes = (shape.data, shape.shard, shape.tensor)
        self._axes = init_device_mesh(self.world.device.type, sizes, mesh_dim_names=names)
        return self._axes["data", "shard"]

    def check(self, model: nn.Module, split: Split) -> None:
        """The axes must fit the world, and a tensor axis needs a plan."""
        check_plan(self.config.mesh.shape(self.world.size).tensor, split.tensor_plan)
        super().check(model, split)

    def split_layers(self, model: nn.Module, split: Split) -> None:
        """Tensor parallelism, as the plan says (Shoeybi et al. 2019, arXiv 1909.08053)."""
        if self.world.tensor_size > 1:
            split_layers(model, self._axes["tensor"], split.tensor_plan)

    def build_optimizer(
        self, kind: MakeOptimizer, parameters: list[nn.Parameter], options: dict[str, Any]
    ) -> torch.optim.Optimizer:
        """One parameter at a time where there is a tensor axis."""
        if self.world.tensor_size > 1:
            options = {**options, **ONE_BY_ONE}
        return super().build_optimizer(kind, parameters, options)


def keep_unflattened(model: nn.Module) -> None:
    """Keep recurrent layers from moving their weights into one piece of memory for cuDNN: gathered
    weights would arrive where they were before, and the layer would compute with its first ones.
    """
    recurrent = [module for module in model.modules() if isinstance(module, nn.RNNBase)]
    for module in recurrent:
        module.flatten_parameters = _no_op  # type: ignore[method-assign]
    if recurrent:  # cuDNN brings them together for each call, and says so each time
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single")


def _no_op() -> None:
    """In the place of a method that must not act."""


def _recompute(model: nn.Module, units: list[nn.Module]) -> None:
    if not units:
        raise BadInput(
            "activation_checkpointing found no list of equal blocks to work on.",
            remedy="Let the task name them with shard_units, or leave the option out.",
        )
    chosen = {id(unit) for unit in units}
    apply_activation_checkpointing(
        model,
        checkpoint_wrapper_fn=checkpoint_wrapper,
        check_fn=lambda module: id(module) in chosen,
    )


def _wraps_one_of(module: nn.Module, units: list[nn.Module]) -> bool:
    inner = getattr(module, "_checkpoint_wrapped_module", None)
    return any(inner is unit for unit in units)


def _send_buffers(model: nn.Module, _: Any) -> None:
    """Before a forward in training: every rank takes rank 0's buffers."""
    if model.training:
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)
