"""The world of one rank: its device, its peers on the data plane, and the control plane."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import (
    PrefixStore,
    Store,
    _get_default_store,
)

from drumline.config import ClusterEnvironment, DistributedConfig, Mode, RunConfig
from drumline.config.environment import visible_devices_setting
from drumline.distributed.control import ControlPlane, LocalControl, StoreControl
from drumline.distributed.device_stats import DeviceStats, device_stats
from drumline.distributed.strategy import Strategy, build_strategy
from drumline.errors import DeviceError


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
    """

    rank: int
    size: int
    local_rank: int
    device: torch.device
    backend: str
    control: ControlPlane
    config: DistributedConfig
    environment: ClusterEnvironment

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes what only one may write."""
        return self.rank == 0

    @property
    def has_data_plane(self) -> bool:
        """Whether there is a process group for tensors."""
        return self.backend != "none"

    def strategy(self) -> Strategy:
        """How a model is spread in this world."""
        return build_strategy(self.config, self)

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> Tensor:
        """Reduce a tensor over ranks, in place, and return it.

        Args:
            tensor: Any shape, on this rank's device, the same shape and dtype on all ranks.
            op: "sum", "max" or "min".
        """
        if self.has_data_plane:
            dist.all_reduce(tensor, getattr(dist.ReduceOp, op.upper()))
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
    size one without a process group, unless mode `distributed` was asked for by name.

    Raises:
        DeviceError: If there are fewer devices than ranks on this machine.
    """
    env = environment or ClusterEnvironment.detect()
    devices = config.devices if isinstance(config, RunConfig) else "auto"
    spread = config.distributed if isinstance(config, RunConfig) else config
    spread = spread or DistributedConfig()
    device = _device(env, devices)
    if env.is_alone and spread.mode is not Mode.DISTRIBUTED:
        yield World(0, 1, 0, device, "none", LocalControl(), spread, env)
        return
    backend = spread.backend
    if backend == "auto":
        backend = "nccl" if device.type == "cuda" else "gloo"
    store = _join(env, backend, device, spread.timeout_s)
    try:
        control = StoreControl(store, env.rank, env.world_size, spread.control_timeout_s)
        yield World(env.rank, env.world_size, env.local_rank, device, backend, control, spread, env)
    finally:
        dist.destroy_process_group()


def _join(env: ClusterEnvironment, backend: str, device: torch.device, timeout_s: float) -> Store:
    """Join the data plane's process group, through the store of whoever started us."""
    timeout = timedelta(seconds=timeout_s)
    device_id = device if device.type == "cuda" else None
    if env.kind in ("drumline", "torchrun"):
        dist.init_process_group(backend, timeout=timeout, device_id=device_id)
        return _get_default_store()
    store = TCPStore(
        env.master_addr, env.master_port, env.world_size, env.rank == 0, timeout=timeout
    )
    dist.init_process_group(
        backend,
        store=PrefixStore(f"attempt-{env.attempt}", store),
        rank=env.rank,
        world_size=env.world_size,
        timeout=timeout,
        device_id=device_id,
    )
    return store


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
