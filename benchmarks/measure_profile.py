"""Measures a device profile for `drumline plan` and `drumline estimate`:

    drumline run benchmarks/measure_profile.py --gpus 2 -- --out h100-sxm.yaml --name "H100 SXM"

One device gives the rates of matrix products, memory, copies from the host, and the time to launch
a kernel; all ranks together give the all-reduce on 2, 4, ... of them. Add what it prints to the
stored profile of the card, in `src/drumline/planning/profiles`, in place of datasheet values.
"""

from __future__ import annotations

import argparse
import time
from datetime import UTC, datetime
from pathlib import Path

import torch
import torch.distributed as dist

from drumline.bench.measure import (
    DTYPES,
    all_reduce_bandwidth,
    copy_bandwidth,
    host_to_device_bandwidth,
    matmul_tflops,
)
from drumline.config import Precision
from drumline.distributed import World, open_world
from drumline.planning.profile import AllReduce, DeviceProfile, Figure, save_profile

LARGE_BYTES = 64 * 2**20
SMALL_BYTES = 8
LAUNCHES = 2000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--name", help="of the profile; by default as the driver says")
    options = parser.parse_args()
    with open_world() as world:
        links = [_all_reduce(world, count) for count in _counts(world.size)]
        if world.is_main:
            found = _profile(world, options.name, [link for link in links if link is not None])
            save_profile(found, options.out)
            print(options.out.read_text())
        world.barrier("profile written")


def _profile(world: World, name: str | None, links: list[AllReduce]) -> DeviceProfile:
    device = world.device
    on_gpu = device.type == "cuda"
    said = torch.cuda.get_device_name(device) if on_gpu else "CPU process"
    return DeviceProfile(
        name=name or said,
        matches=[said],
        kind="cuda" if on_gpu else "cpu",
        compute_capability=torch.cuda.get_device_capability(device) if on_gpu else None,
        matmul_flop_per_s={
            Precision(dtype): _figure(1e12 * matmul_tflops(device, dtype), "a square product")
            for dtype in DTYPES
        },
        memory_bytes_per_s=_figure(1e9 * copy_bandwidth(device), "a copy, read plus write"),
        launch_s=_figure(_launch_s(world), "small operators in a row, as torch runs them"),
        host_to_device_bytes_per_s=_figure(
            1e9 * host_to_device_bandwidth(device, pinned=False), "from ordinary memory"
        )
        if on_gpu
        else None,
        all_reduce=links,
    )


def _launch_s(world: World) -> float:
    """Time of the host for one operator, its kernel too small to matter."""
    small = torch.zeros(1, device=world.device)
    for _ in range(LAUNCHES):
        small.add_(1)
    world.synchronize()
    began = time.perf_counter()
    for _ in range(LAUNCHES):
        small.add_(1)
    world.synchronize()
    return (time.perf_counter() - began) / LAUNCHES


def _counts(size: int) -> list[int]:
    return sorted({*(2**power for power in range(1, size.bit_length())), size} - {1})


def _all_reduce(world: World, count: int) -> AllReduce | None:
    """Latency and bus bandwidth on the first `count` ranks; every rank takes part in the setup."""
    if count > world.size:
        return None
    group = dist.new_group(list(range(count)))
    found = None
    if world.rank < count:
        small = all_reduce_bandwidth(SMALL_BYTES, group, world.device)
        large = all_reduce_bandwidth(LARGE_BYTES, group, world.device)
        moved = 2 * (count - 1) / count * large.size_bytes
        figure = _figure(moved / max(1e-9, large.seconds - small.seconds), "sums of 64 MiB")
        found = AllReduce(
            world_size=count,
            latency_s=small.seconds,
            bus_bytes_per_s=figure.value,
            source=figure.source,
            date=figure.date,
        )
    world.barrier("all-reduce measured")
    return found


def _figure(value: float, how: str) -> Figure:
    today = datetime.now(UTC).date().isoformat()
    return Figure(value=value, source=f"measured: {how}, torch {torch.__version__}", date=today)


if __name__ == "__main__":
    main()
