"""A rank's world and strategy for a trace: no peers, but the memory as if there were some.

DDP works below what a trace sees, so it is modelled. FSDP2 works above, and runs as it is, in a
process group that sends nothing.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from drumline.bench.allocation_recorder import AllocationRecorder
from drumline.config import ClusterEnvironment, DistributedConfig, Mode, RunConfig
from drumline.distributed import (
    UNCUT,
    DataParallelReplicas,
    Hybrid,
    LocalControl,
    Sharded,
    SingleDevice,
    Split,
    Strategy,
    World,
)
from drumline.distributed.strategies.compression import packing_for
from drumline.distributed.strategies.summation import Summation

FIRST_BUCKET = 2**20
BROADCAST_CHUNK = 250 * 2**20
"""DDP sends the weights at its start in flat copies of this size."""


@dataclass(frozen=True)
class TracedWorld(World):
    """Rank 0 of `size` ranks, none of which is there."""

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> Tensor:
        """The tensor itself; a vote on what went wrong (a maximum of one integer) says nothing."""
        if op == "max" and not tensor.dim() and not tensor.is_floating_point():
            return torch.tensor(0, dtype=tensor.dtype)
        return tensor


def traced_world(config: RunConfig, size: int) -> TracedWorld:
    """A world of `size` ranks on which nothing is sent."""
    alone = ClusterEnvironment("alone", 0, size, 0, size, "127.0.0.1", 0)
    spread = config.distributed
    tensor = spread.mesh.shape(size).tensor if spread.mode is Mode.HYBRID else 1
    return TracedWorld(
        *(0, size, 0, torch.device("cpu"), "none", LocalControl(), spread, alone),
        tensor_size=tensor,
    )


@contextmanager
def group_of_nobody(size: int) -> Iterator[None]:
    """A default process group of `size` ranks in which nothing is sent."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def traced_strategy(
    config: RunConfig, world: World, recorder: AllocationRecorder, low_precision: torch.dtype | None
) -> Strategy:
    """The strategy the run would have, with its memory and without its messages.

    Args:
        config: The run.
        world: From `traced_world`.
        recorder: Told what DDP takes.
        low_precision: See `Sharded`.
    """
    if config.distributed.mode is Mode.SHARDED:
        return TracedShards(config.distributed, world, low_precision)
    if config.distributed.mode is Mode.HYBRID:
        return TracedMesh(config.distributed, world, low_precision)
    if world.size == 1:
        return SingleDevice()
    return TracedReplicas(config, world, recorder)


class TracedShards(Sharded):
    """FSDP2 as it is, but that the mesh's own tensors are real: it is made before they are fake."""

    def __init__(
        self, config: DistributedConfig, world: World, low_precision: torch.dtype | None
    ) -> None:
        super().__init__(config, world, low_precision)
        self._mesh = super().mesh()

    def mesh(self) -> DeviceMesh:
        """The same at every call."""
        return self._mesh


class TracedMesh(Hybrid):
    """The same for replicas of shards, and layers that are split over a tensor axis."""

    def __init__(
        self, config: DistributedConfig, world: World, low_precision: torch.dtype | None
    ) -> None:
        super().__init__(config, world, low_precision)
        self._mesh = super().mesh()

    def mesh(self) -> DeviceMesh:
        """The same at every call."""
        return self._mesh

    def wrap(self, model: nn.Module, split: Split = UNCUT) -> nn.Module:
        """FSDP2 puts the mesh of a split layer together itself, and looks at its values."""
        if self.world.tensor_size == 1:
            return super().wrap(model, split)
        together = DeviceMesh._concatenate

        def of_real_tensors(meshes: list[DeviceMesh]) -> DeviceMesh:
            with unset_fake_temporarily():
                return together(meshes)

        with patch.object(DeviceMesh, "_concatenate", staticmethod(of_real_tensors)):
            return super().wrap(model, split)


class TracedReplicas(DataParallelReplicas):
    """DDP with gradients that are views of buckets, as far as its memory goes.

    All gradients share one bucket at first. After the first backward that was summed they are
    packed anew, in the order in which they came, unless parameters may stay unused. A gradient is
    made by autograd, copied into its bucket and freed; one that was accumulated without sums is a
    second set until then (torch/csrc/distributed/c10d/reducer.cpp). Parcels of small gradients are
    copies, which last until the end of the backward.
    """

    def __init__(self, config: RunConfig, world: World, recorder: AllocationRecorder) -> None:
        super().__init__(config.distributed, world)
        self._recorder = recorder
        self._sending, self._rebuilt = True, False
        self._order: list[nn.Parameter] = []
        self._buckets: list[Tensor] = []
        self._views: dict[nn.Parameter, Tensor] = {}
        self._members: list[list[nn.Parameter]] = []
        self._missing: set[nn.Parameter] = set()
        self._taken = 0

    def wrap(self, model: nn.Module, split: Split = UNCUT) -> nn.Module:
        """The model, with hooks on its gradients."""
        del split
        self.model = model
        packing = packing_for(self.config.ddp.compression, self.world.size)
        self._parcels = _Unsent(self.parameters(), self.world.device, packing)
        self._broadcast()
        self._rebuilt = self.config.find_unused_parameters
        self._pack(self.parameters(), in_one=not self._rebuilt)
        for parameter in self.parameters():
            parameter.register_post_accumulate_grad_hook(self._ready)  # type: ignore[no-untyped-call]
        model.register_forward_pre_hook(self._before_forward)
        return model

    def accumulate(self) -> AbstractContextManager[None]:
        """Gradients stay where autograd put them."""
        return self._quiet()

    def reduce_gradients(self) -> None:
        """Summed in place, and parcels beside."""
        with self._recorder.within("temporaries"):
            self._parcels.all_at_once()

    def teardown(self) -> None:
        """Let go of the buckets."""
        self._members.clear()
        self._views.clear()
        self._buckets.clear()
        del self.model

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        self._sending = False
        try:
            yield
        finally:
            self._sending = True

    def _ready(self, parameter: Tensor) -> None:
        if not self._sending or not isinstance(parameter, nn.Parameter):
            return
        view = self._views[parameter]
        if parameter.grad is not None and parameter.grad is not view:
            view.copy_(parameter.grad)
        parameter.grad = view
        if not self._rebuilt:
            self._order.append(parameter)
        if not self._missing:
            self._missing, self._taken = set(self._views), 0
        self._missing.discard(parameter)
        while self._taken < len(self._members):
            members = self._members[self._taken]
            if not self._missing.isdisjoint(members):
                break
            self._parcels.take(self._taken, members, [self._views[each] for each in members])
            self._taken += 1

    def _before_forward(self, _: nn.Module, __: Any) -> None:
        if self._rebuilt or not self._order or not torch.is_grad_enabled():
            return
        self._rebuilt = True
        self._pack(self._order)
        self._order = []

    def _pack(self, parameters: list[nn.Parameter], *, in_one: bool = False) -> None:
        self._views.clear()
        self._buckets.clear()
        cap = sys.maxsize if in_one else int(self.config.bucket_cap_mb * 2**20)
        first = cap if in_one else min(FIRST_BUCKET, cap)
        self._members = bucketed(parameters, cap, first)
        for members in self._members:
            length = sum(parameter.numel() for parameter in members)
            with self._recorder.within("buckets"):
                bucket = torch.empty(length, dtype=members[0].dtype)
            self._buckets.append(bucket)
            offset = 0
            for parameter in members:
                view = bucket[offset : offset + parameter.numel()].view(parameter.shape)
                self._views[parameter] = view
                offset += parameter.numel()

    def _broadcast(self) -> None:
        """The flat copies in which weights and buffers are sent; at most two at a time."""
        states = [state.detach() for state in (*self.model.parameters(), *self.model.buffers())]
        under_way: deque[Tensor] = deque(maxlen=2)
        for members in bucketed(states, BROADCAST_CHUNK, BROADCAST_CHUNK):
            if len(members) > 1:  # one alone is sent as it is
                with self._recorder.within("temporaries"):
                    length = sum(member.nbytes for member in members)
                    under_way.append(torch.empty(length, dtype=torch.uint8))


class _Unsent(Summation):
    """Parcels that are packed and never sent."""

    def start(self, packed: Tensor) -> dist.Work:
        """Done at once."""
        del packed
        return _Done()

    def _wanted(self) -> set[int]:
        return {id(parameter) for parameter in self.parameters if parameter.grad is not None}


class _Done(dist.Work):
    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Nothing to wait for."""
        del timeout
        return True


def bucketed(tensors: Sequence[Tensor], cap: int, first: int) -> list[list[Any]]:
    """Tensors in order, in groups that close once they reach `cap` bytes, the first at `first`."""
    groups: list[list[Any]] = [[]]
    filled, limit = 0, first
    for tensor in tensors:
        groups[-1].append(tensor)
        filled += tensor.nbytes
        if filled >= limit:
            groups.append([])
            filled, limit = 0, cap
    return [group for group in groups if group]
