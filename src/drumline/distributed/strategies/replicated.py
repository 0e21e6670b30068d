"""Mode `distributed`: a replica on every rank, through DistributedDataParallel.

DDP says when gradients are there; what is sent together is decided by `summation`.
"""

import inspect
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from drumline.config import DistributedConfig, Mode
from drumline.distributed.strategies.base import UNCUT, MakeOptimizer, Split, WholeModel
from drumline.distributed.strategies.compression import (
    low_rank_state,
    packing_for,
    sum_low_rank,
)
from drumline.distributed.strategies.summation import Channel, Summation, sum_each
from drumline.distributed.synchronised_norm import synchronise_norms

if TYPE_CHECKING:
    from drumline.distributed.world import World

# Torch 2.13 renamed the flag.
_SYNC_BUFFERS = (
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else "broadcast_buffers"
)


class DataParallelReplicas(WholeModel):
    """A replica on every rank. Ranks keep step only where a norm is taken over all of them.

    Attributes:
        channel: Where gradients are summed; its group may be exchanged between steps.
    """

    mode = Mode.DISTRIBUTED

    def __init__(self, config: DistributedConfig, world: "World") -> None:
        self.config, self.world = config, world
        self.overlaps = not config.ddp.delayed_all_reduce
        self.primes = config.ddp.static_graph  # DDP learns the graph in its first backward
        self.rewraps = not config.ddp.static_graph
        self.channel = Channel()
        self._summation: Summation | None = None
        self._ddp: DistributedDataParallel | None = None

    def wrap(self, model: nn.Module, split: Split = UNCUT) -> nn.Module:
        """The model in DDP, with gradients summed and not averaged."""
        del split
        self.lockstep = self.config.sync_batchnorm and synchronise_norms(model)
        self.model = model
        return self._replicate(model)

    def rewrap(self) -> nn.Module:
        """A new DDP, whose buckets have the layout that the weights have now."""
        self._ddp = None  # its hooks on the parameters go with it
        return self._replicate(self.model)

    def _replicate(self, model: nn.Module) -> DistributedDataParallel:
        device, buffers = self.world.device, self.config.sync_buffers
        packing = packing_for(self.config.ddp.compression, self.world.size)
        self._summation = Summation(self.parameters(), device, packing, self.channel)
        flags: dict[str, Any] = {
            _SYNC_BUFFERS: keeps_statistics(model) if buffers is None else buffers
        }
        self._ddp = DistributedDataParallel(
            model,
            device_ids=[device.index] if device.type == "cuda" else None,
            bucket_cap_mb=self.config.bucket_cap_mb,
            find_unused_parameters=self.config.find_unused_parameters,
            gradient_as_bucket_view=True,
            static_graph=self.config.ddp.static_graph,
            **flags,
        )
        if self.config.ddp.compression == "powersgd":
            state = low_rank_state(self.config.ddp, self.world.size)
            self._ddp.register_comm_hook(state, sum_low_rank)
        else:
            self._ddp.register_comm_hook(self._summation, sum_each)
        return self._ddp

    def build_optimizer(
        self, kind: MakeOptimizer, parameters: list[nn.Parameter], options: dict[str, Any]
    ) -> torch.optim.Optimizer:
        """The optimizer, its state shared out among the ranks if the config says so."""
        if not self.config.ddp.shard_optimizer:
            return kind(parameters, **options)
        return ZeroRedundancyOptimizer(parameters, optimizer_class=kind, **options)  # type: ignore[arg-type]

    def accumulate(self) -> AbstractContextManager[None]:
        """DDP's no_sync."""
        assert self._ddp is not None
        context: AbstractContextManager[None] = self._ddp.no_sync()
        return context

    def absent(self) -> None:
        """DDP agrees on its buckets in the forward that follows its first reducing backward."""
        assert self._ddp is not None
        self._ddp.reducer._rebuild_buckets()

    def reduce_gradients(self) -> None:
        """Sum in the parcels of the hook; what no rank used keeps no gradient."""
        assert self._summation is not None
        self._summation.all_at_once()

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The whole state; a sharded one is sent to rank 0, and empty elsewhere."""
        if isinstance(optimizer, ZeroRedundancyOptimizer):
            optimizer.consolidate_state_dict(to=0)
            if not self.world.is_main:
                return {}
        return super().optimizer_state(optimizer)

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Take this rank's part; see `Strategy`."""
        super().load_optimizer_state(optimizer, state)
        if isinstance(optimizer, ZeroRedundancyOptimizer):
            finish_loading(optimizer)

    def teardown(self) -> None:
        """Let go of the replica."""
        self._ddp = self._summation = None
        super().teardown()


def finish_loading(optimizer: ZeroRedundancyOptimizer) -> None:
    """Put right what torch's loading leaves: counts of steps on the CPU, where a fused update on a
    GPU cannot read them, and a second copy of this rank's state, which nothing reads.
    """
    optimizer.state.clear()
    for group in optimizer.optim.param_groups:
        if not (group.get("fused") or group.get("capturable")):
            continue
        for parameter in group["params"]:
            held = optimizer.optim.state.get(parameter, {})
            held.update({k: v.to(parameter.device) for k, v in held.items() if k == "step"})


def keeps_statistics(model: nn.Module) -> bool:
    """Whether a module tracks running statistics, as BatchNorm does: each replica would see others.

    Sending buffers is a wait for all ranks at every step, which other buffers do not need.
    """
    return any(getattr(module, "track_running_stats", False) for module in model.modules())
