"""The world of one rank: its device, its peers on the data plane, and the control plane."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import (
    PrefixStore,
    Store,
    _get_default_store,
)
from torch.distributed.rendezvous import rendezvous

from drumline.config import ClusterEnvironment, DistributedConfig, Mode, RunConfig
from drumline.config.environment import visible_devices_setting
from drumline.distributed.control import ControlPlane, LocalControl, StoreControl
from drumline.distributed.device_stats import DeviceStats, device_stats
from drumline.distributed.host_memory import keep_freed_memory
from drumline.errors import DeviceError

if TYPE_CHECKING:
    from drumline.distributed.strategies import Strategy

_opened = itertools.count()
"""Numbers the worlds of this process, so that each has its own part of the store."""


@dataclass(frozen=True)
class World:
    """What a rank knows of all ranks.

    Attributes:
        rank: This process among `size`.
        device: The device of this rank.
        backend: Data plane: "nccl", "gloo", or "none" for one process without a group.
        control: Votes and small messages; see `ControlPlane`.
        config: How the run is spread.
        environment: Who started this process.
        tensor_size: Neighbouring ranks that work on the same samples, each on a part of the layers.
        pipeline_size: Ranks that pass activations on to each other. They are as far apart as can
            be, so that with several machines a pipeline goes from one to the next.
        data_group: Ranks that work on different samples with this rank's part; None is all.
        pipeline_group: The ranks of this rank's pipeline, in the order of stages.
    """

    rank: int
    size: int
    local_rank: int
    device: torch.device
    backend: str
    control: ControlPlane
    config: DistributedConfig
    environment: ClusterEnvironment
    tensor_size: int = 1
    pipeline_size: int = 1
    data_group: dist.ProcessGroup | None = None
    pipeline_group: dist.ProcessGroup | None = None

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes what only one may write."""
        return self.rank == 0

    @property
    def device_name(self) -> str:
        """What this rank's device is called."""
        on_gpu = self.device.type == "cuda"
        return torch.cuda.get_device_name(self.device) if on_gpu else "CPU process"

    @property
    def has_data_plane(self) -> bool:
        """Whether there is a process group for tensors."""
        return self.backend != "none"

    @property
    def data_rank(self) -> int:
        """Which of the `data_size` shares of a step this rank works on."""
        return self.rank // self.tensor_size % self.data_size

    @property
    def data_size(self) -> int:
        """Number of shares; fewer than ranks where some work on the same samples."""
        return self.size // (self.tensor_size * self.pipeline_size)

    @property
    def pipeline_rank(self) -> int:
        """This rank's place in its pipeline."""
        return self.rank // (self.tensor_size * self.data_size)

    @property
    def is_first_of_stage(self) -> bool:
        """Of all ranks at one place in a pipeline, and so with the same parameters, one."""
        return self.rank % (self.tensor_size * self.data_size) == 0

    @property
    def speaks(self) -> bool:
        """Whether this rank's sums count among all ranks': of those that work on the same samples,
        one does.
        """
        return self.rank % self.tensor_size == 0 and self.pipeline_rank == 0

    def spread_by(self, config: DistributedConfig) -> World:
        """The same ranks, spread as a config says. All ranks call it together.

        Raises:
            BadInput: If its mesh does not fit them.
        """
        shape = config.mesh.shape(self.size) if config.mode is Mode.HYBRID else None
        tensor, pipeline = (shape.tensor, shape.pipeline) if shape else (1, 1)
        spread = replace(self, config=config, tensor_size=tensor, pipeline_size=pipeline)
        if tensor * pipeline == 1:
            return replace(spread, data_group=None, pipeline_group=None)
        ranks = torch.arange(self.size).view(pipeline, -1, tensor)
        data, along = ranks.transpose(0, 1).flatten(1).T, ranks.flatten(1).T
        return replace(
            spread,
            data_group=self._group_among(data.tolist()),
            pipeline_group=self._group_among(along.tolist()) if pipeline > 1 else None,
        )

    def _group_among(self, groups: list[list[int]]) -> dist.ProcessGroup:
        """The group that this rank is in; all ranks make all groups, in the same order."""
        mine: dist.ProcessGroup | None = None
        for ranks in groups:
            made = dist.new_group(ranks)
            mine = made if self.rank in ranks else mine
        assert mine is not None
        return mine

    def strategy(self) -> Strategy:
        """How a model is spread in this world."""
        from drumline.distributed.strategies import build_strategy

        return build_strategy(self.config, self)

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> Tensor:
        """Reduce a tensor over ranks that work on different samples, in place, and return it.

        Args:
            tensor: Any shape, on this rank's device, the same shape and dtype on all ranks.
            op: "sum", "max" or "min".
        """
        if self.data_size > 1:  # a collective of one rank takes its time, too
            dist.all_reduce(tensor, getattr(dist.ReduceOp, op.upper()), group=self.data_group)
        return tensor

    def broadcast(self, tensor: Tensor, source: int) -> Tensor:
        """Overwrite a tensor, of any device, with the source rank's, bit for bit; returns it."""
        if self.has_data_plane:
            there = tensor.to(self.device).contiguous()
            dist.broadcast(there, source)
            tensor.copy_(there)
        return tensor

    def barrier(self, name: str = "barrier") -> None:
        """Wait for all ranks on the control plane."""
        self.control.barrier(name)

    def synchronize(self) -> None:
        """Wait until the device has done all that was queued on it."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def device_stats(self) -> list[DeviceStats]:
        """The memory of this process's devices. `control.gather` brings those of all ranks."""
        return [device_stats(self.device)]


@contextmanager
def open_world(
    config: RunConfig | DistributedConfig | None = None,
    environment: ClusterEnvironment | None = None,
) -> Iterator[World]:
    """Open the world that the environment describes, and close it at the end.

    Works alone, under `drumline`, torchrun, Slurm and mpirun. One process alone gets a world of
    size one without a process group, unless a mode that exchanges tensors was asked for by name.

    Raises:
        DeviceError: If there are fewer devices than ranks on this machine.
    """
    env = environment or ClusterEnvironment.detect()
    devices = config.devices if isinstance(config, RunConfig) else "auto"
    spread = config.distributed if isinstance(config, RunConfig) else config
    spread = spread or DistributedConfig()
    device = _device(env, devices)
    if device.type == "cpu":
        keep_freed_memory()
    if env.is_alone and not spread.mode.needs_group:
        yield World(0, 1, 0, device, "none", LocalControl(), spread, env)
        return
    backend = spread.backend
    if backend == "auto":
        backend = "nccl" if device.type == "cuda" else "gloo"
    store = _join(env, backend, device, spread.timeout_s)
    try:
        control = StoreControl(store, env.rank, env.world_size, spread.control_timeout_s)
        world = World(
            env.rank, env.world_size, env.local_rank, device, backend, control, spread, env
        )
        yield world.spread_by(spread)
    finally:
        dist.destroy_process_group()


def _join(env: ClusterEnvironment, backend: str, device: torch.device, timeout_s: float) -> Store:
    """Join the data plane's process group, through the store of whoever started us."""
    timeout = timedelta(seconds=timeout_s)
    if env.kind in ("drumline", "torchrun"):
        store: Store = next(rendezvous("env://", env.rank, env.world_size, timeout=timeout))[0]
    else:
        store = TCPStore(
            env.master_addr, env.master_port, env.world_size, env.rank == 0, timeout=timeout
        )
    # torchrun keeps one store over its restarts, and a script may open several worlds: without a
    # prefix of its own, a new one would find the addresses of one that is gone.
    dist.init_process_group(
        backend,
        store=PrefixStore(f"attempt-{env.attempt}/world-{next(_opened)}", store),
        rank=env.rank,
        world_size=env.world_size,
        timeout=timeout,
        device_id=device if device.type == "cuda" else None,
    )
    return _get_default_store()


def _device(env: ClusterEnvironment, asked: str) -> torch.device:
    """This rank's device: the local rank's GPU among the visible ones, or the CPU."""
    wanted = env.devices or asked
    if wanted.startswith("cpu") or not torch.cuda.is_available():
        if wanted in ("cuda", "rocm"):
            raise DeviceError(
                "GPUs were planned for this run, and torch sees none.",
                remedy="Check the driver and that torch is built for CUDA.",
            )
        return torch.device("cpu")
    if env.is_alone:
        return _one_of_the_visible(wanted)
    there = torch.cuda.device_count()
    if there == 1 and visible_devices_setting()[0] is not None and env.kind != "drumline":
        device = torch.device("cuda", 0)  # whoever started us gave each rank its own GPU
        torch.cuda.set_device(device)
        return device
    if env.local_rank >= there:
        raise DeviceError(
            f"{env.local_world_size} ranks were started on this machine, which has {there} GPUs.",
            remedy=f"Start at most {there} ranks, or set devices=cpu.",
            there=there,
        )
    device = torch.device("cuda", env.local_rank)
    torch.cuda.set_device(device)
    return device


def _one_of_the_visible(asked: str) -> torch.device:
    """The GPU of a process alone: the first that torch sees, or the one named by index or UUID."""
    names = [name for name in asked.split(",") if name]
    if len(names) > 1 or (asked.isdecimal() and asked != "1"):
        raise DeviceError(
            f"devices={asked} names several GPUs, and this is one process.",
            remedy="Start it with: drumline run SCRIPT.py --gpus ...",
        )
    for index in range(torch.cuda.device_count()):
        uuid = f"GPU-{torch.cuda.get_device_properties(index).uuid}"
        if asked in ("auto", "all", "1") or names[0] == str(index) or uuid.startswith(names[0]):
            device = torch.device("cuda", index)
            torch.cuda.set_device(device)
            return device
    raise DeviceError(
        f"devices={asked} names a GPU that torch does not see.",
        remedy=f"There are {torch.cuda.device_count()}; see: drumline check",
    )
