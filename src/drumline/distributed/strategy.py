"""How a model is spread over ranks. The Trainer calls this interface and never asks which it is.

Gradients are sums over ranks, never means: the loss was already divided by the global count, so
unequal shares and short batches are exact. Each parameter's gradient is reduced on its own, so
the order of additions does not depend on how DDP packs its buckets, which changes after its first
backward: a run that was interrupted and resumed adds in the same order as one that was not.
"""

import inspect
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from drumline.config import DistributedConfig, Mode

if TYPE_CHECKING:
    from drumline.distributed.world import World

# Torch 2.13 renamed the flag.
_SYNC_BUFFERS = (
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else "broadcast_buffers"
)
# DDP looks at the hook's annotations, so this module must not turn them into strings.


class Strategy(ABC):
    """How one model is spread."""

    mode: ClassVar[Mode]

    @abstractmethod
    def wrap(self, model: nn.Module) -> nn.Module:
        """The model to call in a step; parameters are on the device and equal on all ranks."""

    @abstractmethod
    def accumulate(self) -> AbstractContextManager[None]:
        """Within it, a backward adds to the local gradients and nothing is sent."""

    @abstractmethod
    def reduce_gradients(self) -> None:
        """Sum the local gradients over ranks, after backwards that were all accumulated.

        A rank whose share was empty takes part with zeros.
        """

    @abstractmethod
    def gradient_norm(self) -> Tensor:
        """The L2 norm of the whole gradient, a scalar equal on all ranks."""

    @abstractmethod
    def clip(self, max_norm: float, norm: Tensor) -> None:
        """Scale gradients in place so that their norm, now `norm`, is at most `max_norm`."""

    @abstractmethod
    def teardown(self) -> None:
        """Give back what `wrap` took."""


class _Replicated(Strategy):
    """What strategies with a whole model on every rank have in common."""

    model: nn.Module

    def parameters(self) -> list[nn.Parameter]:
        """Parameters that are trained, in the model's order, each once."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def gradient_norm(self) -> Tensor:
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        return nn.utils.get_total_norm(gradients)

    def clip(self, max_norm: float, norm: Tensor) -> None:
        nn.utils.clip_grads_with_norm_(self.parameters(), max_norm, norm)

    def teardown(self) -> None:
        del self.model


class SingleDevice(_Replicated):
    """Mode `none`: one device holds everything."""

    mode = Mode.NONE

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model itself."""
        self.model = model
        return model

    def accumulate(self) -> AbstractContextManager[None]:
        """Nothing is ever sent."""
        return nullcontext()

    def reduce_gradients(self) -> None:
        """The local gradients are the whole."""


class DataParallelReplicas(_Replicated):
    """Mode `distributed`: a replica on every rank, through DistributedDataParallel."""

    mode = Mode.DISTRIBUTED

    def __init__(self, config: DistributedConfig, world: "World") -> None:
        self.config, self.world = config, world

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model in DDP, with gradients summed and not averaged."""
        self.model = model
        device = self.world.device
        buffers = self.config.sync_buffers
        flags: dict[str, Any] = {
            _SYNC_BUFFERS: _keeps_statistics(model) if buffers is None else buffers
        }
        self._ddp = DistributedDataParallel(
            model,
            device_ids=[device.index] if device.type == "cuda" else None,
            bucket_cap_mb=self.config.bucket_cap_mb,
            find_unused_parameters=self.config.find_unused_parameters,
            gradient_as_bucket_view=True,
            **flags,
        )
        self._ddp.register_comm_hook(None, _sum_each)
        return self._ddp

    def accumulate(self) -> AbstractContextManager[None]:
        """DDP's no_sync."""
        context: AbstractContextManager[None] = self._ddp.no_sync()
        return context

    def reduce_gradients(self) -> None:
        """Sum parameter by parameter, as the hook does; one that no rank used keeps no gradient."""
        parameters = self.parameters()
        used = torch.tensor([int(p.grad is not None) for p in parameters], device=self.world.device)
        dist.all_reduce(used, dist.ReduceOp.MAX)
        works = []
        for parameter, is_used in zip(parameters, used.tolist(), strict=True):
            if is_used:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                works.append(dist.all_reduce(parameter.grad, async_op=True))
        for work in works:
            work.wait()

    def teardown(self) -> None:
        """Let go of the replica."""
        del self._ddp
        super().teardown()


def build_strategy(config: DistributedConfig, world: "World") -> Strategy:
    """The strategy for a world: its mode if one was named, else by the number of ranks."""
    replicated = config.mode is Mode.DISTRIBUTED or (config.mode is Mode.AUTO and world.size > 1)
    if replicated and world.has_data_plane:
        return DataParallelReplicas(config, world)
    return SingleDevice()


def _sum_each(_: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """DDP communication hook: sum each parameter's gradient on its own; no division."""
    works = [dist.all_reduce(gradient, async_op=True) for gradient in bucket.gradients()]
    futures = [work.get_future() for work in works]
    if bucket.buffer().is_cuda:  # one stream: the last to be queued is the last to be done
        return futures[-1].then(lambda _: bucket.buffer())  # type: ignore[no-any-return]
    return torch.futures.collect_all(futures).then(lambda _: bucket.buffer())


def _keeps_statistics(model: nn.Module) -> bool:
    return any(getattr(module, "track_running_stats", False) for module in model.modules())
