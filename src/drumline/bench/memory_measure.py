"""Measures the memory of real optimizer steps on a GPU, to hold an estimate against.

The steps are those of a real Session, in a process that did nothing before, alone or under
torchrun. `python -m drumline.bench.memory_measure` reads a request as JSON on stdin.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from drumline.config import ClusterEnvironment, RunConfig
from drumline.config.environment import visible_devices_setting
from drumline.config.load import parse_config
from drumline.config.section import import_object
from drumline.distributed import World, open_world
from drumline.errors import BadInput, DeviceError
from drumline.hardware import Machine, visible_devices
from drumline.run_directory import RunDirectory
from drumline.training.session import Session, open_session
from drumline.training.task import Task

STEPS = 5
"""Two careful ones, one whose gradients are summed on the way, one with new buckets, one more."""

_TRACED_FROM = 2**18
_FRAMES = 5


@dataclass
class MeasuredMemory:
    """Peaks of one process, in bytes.

    Attributes:
        device: Name of the card.
        capability: Its compute capability.
        versions: Of torch, CUDA, cuDNN, NCCL and the driver, as far as they are known.
        allocated_peak: torch.cuda.max_memory_allocated.
        reserved_peak: torch.cuda.max_memory_reserved.
        outside: What the process takes on the device outside torch's allocator.
        segments: Sizes of the allocator's segments at the end.
        events: [action, bytes, address, where] of the allocator, in order.
    """

    device: str
    capability: tuple[int, int]
    versions: dict[str, str]
    allocated_peak: int
    reserved_peak: int
    outside: int
    segments: list[int] = field(default_factory=list)
    events: list[list[Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def measure_task(task: Task, config: RunConfig, steps: int = STEPS) -> MeasuredMemory:
    """Take optimizer steps and read the allocator.

    Args:
        task: What is trained.
        config: The run; its steps must be at least as many.
        steps: Steps to take.

    Raises:
        DeviceError: If this rank has no CUDA device.
    """
    environment = ClusterEnvironment.detect()
    used_before = _used_on_device(environment.local_rank)
    with tempfile.TemporaryDirectory() as folder, open_world(config, environment) as world:
        if world.device.type != "cuda":
            raise DeviceError("There is no CUDA device to measure on.", remedy="Run it on one.")
        torch.cuda.memory._record_memory_history(
            enabled="all", context="alloc", stacks="python", max_entries=500_000
        )
        run = RunDirectory.create(Path(folder) / f"rank-{world.rank}")
        session = open_session(config, task, world, run)
        _take_steps(session, steps)
        world.synchronize()
        measured = _read(world, used_before)
        session.strategy.teardown()
        session.events.close()
    return measured


def _take_steps(session: Session, steps: int) -> None:
    batches = session.source.open(session.share, session.progress.cursor)
    for index in range(steps):
        batch = next(batches)
        session.schedule(batch)
        session.step.take(batch, index)
        session.progress.step += 1


def _read(world: World, used_before: int | None) -> MeasuredMemory:
    device = world.device
    snapshot = torch.cuda.memory._snapshot()
    free, total = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    traces = snapshot["device_traces"][device.index or 0]
    return MeasuredMemory(
        device=torch.cuda.get_device_name(device),
        capability=torch.cuda.get_device_capability(device),
        versions=_versions(),
        allocated_peak=torch.cuda.max_memory_allocated(device),
        reserved_peak=torch.cuda.max_memory_reserved(device),
        outside=total - free - reserved - (used_before or 0),
        segments=[segment["total_size"] for segment in snapshot["segments"]],
        events=[_event(entry) for entry in traces],
    )


def _event(entry: dict[str, Any]) -> list[Any]:
    where = ""
    if entry["action"] == "alloc" and entry.get("size", 0) >= _TRACED_FROM:
        frames = entry.get("frames", [])[:_FRAMES]
        where = " < ".join(f"{Path(f['filename']).name}:{f['line']}" for f in frames)
    return [entry["action"], entry.get("size", 0), entry.get("addr", 0), where]


def _versions() -> dict[str, str]:
    found = {"torch": torch.__version__, "cuda": str(torch.version.cuda)}
    found["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    if torch.distributed.is_available() and torch.distributed.is_nccl_available():
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return found


def _used_on_device(index: int) -> int | None:
    """Bytes in use on a device before this process has a context there; None if not known."""
    shown = visible_devices(Machine.probe().devices, *visible_devices_setting()).devices
    return shown[index].memory_used_bytes if index < len(shown) else None


def main() -> int:
    """Answer the request on stdin; rank 0 alone answers."""
    request = json.load(sys.stdin)
    config = parse_config(request["config"])
    if config.task is None:
        raise BadInput("The config names no task.", remedy="Set task.name.")
    task: Task = import_object(config.task.implementation)()
    measured = measure_task(task, config, request.get("steps", STEPS))
    if ClusterEnvironment.detect().rank == 0:
        json.dump(measured.as_dict(), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
