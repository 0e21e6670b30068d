"""What a device and its links really give. Each function warms up, and takes the median of several
repeats: timed by CUDA events on a GPU, by the clock on the CPU.

`check` tells by these numbers which device is slow, and `estimate` predicts from them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
"""Arithmetic of a matmul. tf32 is fp32 storage with the tensor cores' shorter mantissa."""

MIB = 2**20
_WARM_UP_S = 0.2
_PERIOD = 64


@dataclass(frozen=True)
class AllReduceTiming:
    """How long an all-reduce of `size_bytes` took on `ranks` ranks.

    `bus_gb_s` is what a ring sends over each link, 2 (n-1) / n times the bytes in the time, in
    10^9 bytes a second. It compares with the bandwidth of one direction of a link, whatever n; as
    in https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md.
    """

    ranks: int
    size_bytes: int
    seconds: float

    @property
    def bus_gb_s(self) -> float:
        """Bandwidth on each link of a ring; 0 on one rank, which sends nothing."""
        return 2 * (self.ranks - 1) / self.ranks * self.size_bytes / self.seconds / 1e9


def matmul_tflops(device: torch.device, dtype: str, size: int | None = None) -> float:
    """The rate of a square matrix product, in 10^12 floating-point operations a second.

    Args:
        device: A GPU or the CPU.
        dtype: One of `DTYPES`.
        size: Rows of the matrices; by default 8192 on a GPU that has room for it, 1024 on the CPU.
    """
    size = size or _matmul_size(device)
    a, b = (torch.randn(size, size, device=device, dtype=DTYPES[dtype]) for _ in range(2))
    out = torch.empty(size, size, device=device, dtype=DTYPES[dtype])
    with _float32_matmul("high" if dtype == "tf32" else "highest"):
        seconds = median_seconds(lambda: torch.mm(a, b, out=out), device)
    return 2 * size**3 / seconds / 1e12


def copy_bandwidth(device: torch.device, size_bytes: int | None = None) -> float:
    """Bandwidth of a copy within the device's memory, bytes read and written, in 10^9 bytes/s."""
    size_bytes = size_bytes or (256 * MIB if device.type == "cuda" else 64 * MIB)
    source = torch.ones(size_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size_bytes / median_seconds(lambda: target.copy_(source), device) / 1e9


def host_to_device_bandwidth(
    device: torch.device, *, pinned: bool, size_bytes: int = 256 * MIB
) -> float:
    """Bandwidth from host memory to a GPU, in 10^9 bytes/s.

    Args:
        device: A GPU.
        pinned: From page-locked memory, which the GPU reads by itself, or from ordinary memory.
        size_bytes: What one copy moves.
    """
    source = torch.ones(size_bytes, dtype=torch.uint8, pin_memory=pinned)
    target = torch.empty(size_bytes, dtype=torch.uint8, device=device)
    seconds = median_seconds(lambda: target.copy_(source, non_blocking=pinned), device, repeats=5)
    return size_bytes / seconds / 1e9


def all_reduce_bandwidth(
    size_bytes: int,
    group: dist.ProcessGroup | None = None,
    device: torch.device | None = None,
    repeats: int = 10,
) -> AllReduceTiming:
    """Time an all-reduce of fp32 sums; all ranks of the group call it.

    Args:
        size_bytes: Bytes of the tensor on each rank.
        group: The ranks; all by default.
        device: Where the tensor is; the CPU by default.
        repeats: All-reduces timed.
    """
    place = device or torch.device("cpu")
    tensor = torch.zeros(max(1, size_bytes // 4), dtype=torch.float32, device=place)
    seconds = median_seconds(
        lambda: dist.all_reduce(tensor, group=group), place, repeats=repeats, warm_up_s=0.0
    )
    return AllReduceTiming(dist.get_world_size(group), 4 * tensor.numel(), seconds)


def wrong_sums(
    device: torch.device,
    group: dist.ProcessGroup | None = None,
    contribution: int | None = None,
    count: int = MIB,
) -> int:
    """How many elements of an all-reduce differ from the sum known by arithmetic; 0 is right.

    Rank r of n gives (r + 1) (i mod 64 + 1) at position i, so that the sum is n (n + 1) / 2 times
    (i mod 64 + 1): small whole numbers, exact in fp32, and different where blocks are swapped.

    Args:
        device: Where the tensor is.
        group: The ranks; all by default.
        contribution: What this rank gives in place of r + 1.
        count: Elements.
    """
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    pattern = torch.arange(count, device=device, dtype=torch.float32) % _PERIOD + 1
    tensor = pattern * (rank + 1 if contribution is None else contribution)
    dist.all_reduce(tensor, group=group)
    return int((tensor != pattern * (ranks * (ranks + 1) // 2)).sum().item())


def median_seconds(
    work: Callable[[], object],
    device: torch.device,
    *,
    repeats: int = 10,
    warm_up_s: float = _WARM_UP_S,
) -> float:
    """Median time of `work` in seconds, after warming up at least twice and for `warm_up_s`."""
    end = time.perf_counter() + (warm_up_s if device.type == "cuda" else 0.0)
    work()
    work()
    _wait(device)
    while time.perf_counter() < end:
        work()
        _wait(device)
    times = _by_events(work, device, repeats) if device.type == "cuda" else _by_clock(work, repeats)
    return max(statistics.median(times), 1e-9)


def _by_events(work: Callable[[], object], device: torch.device, repeats: int) -> list[float]:
    event: Callable[..., torch.cuda.Event] = torch.cuda.Event
    pairs = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(repeats)]
    with torch.cuda.device(device):
        for start, end in pairs:
            start.record()
            work()
            end.record()
        torch.cuda.synchronize(device)
    return [start.elapsed_time(end) / 1000 for start, end in pairs]


def _by_clock(work: Callable[[], object], repeats: int) -> list[float]:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return times


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _matmul_size(device: torch.device) -> int:
    """Three fp32 matrices of 8192 rows are 0.8 GB, and libraries want workspaces beside them."""
    if device.type != "cuda":
        return 1024
    free, _ = torch.cuda.mem_get_info(device)
    return 8192 if free > 4 * 2**30 else 4096 if free > 2**30 else 2048


@contextmanager
def _float32_matmul(precision: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
