"""What watching costs: milliseconds a step with stability off, at its defaults, and all on.

    python benchmarks/stability_overhead.py [--steps 600]
    torchrun --nproc-per-node 2 benchmarks/stability_overhead.py     (with the replica comparison)

The settings take turns in blocks, so that all meet the same clocks and temperatures, and the
median block of each counts. A block is 100 steps, so each holds one of the measurements that come
every 100 steps. Time is wall time on a GPU; on the CPU it is the process's own processor time, as
other processes of the machine disturb that less. One row a size, as CSV.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from drumline.config import parse_config
from drumline.distributed import World, open_world
from drumline.run_directory import RunDirectory
from drumline.training.own_model import OwnModelTask
from drumline.training.session import Session, open_session

BLOCK = 100
SETTINGS: dict[str, dict[str, Any]] = {
    "off": {"enabled": False},
    "default": {},
    "all": {"activations": ["*"], "activations_every": 10, "update_ratio_every": 10},
}
SETTINGS["all"] |= {"fingerprint_every": 10}
SIZES = [(2, 64), (4, 256), (6, 512), (8, 1024), (12, 2048)]
COLUMNS = "device,ranks,layers,width,parameters,off_ms,default_ms,all_ms,default_over,all_over"


def build(layers: int, width: int) -> nn.Module:
    blocks = [
        nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(),
                      nn.Linear(4 * width, width))
        for _ in range(layers)
    ]  # fmt: skip
    return nn.Sequential(*blocks)


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    return (model(batch) - batch).square().mean(1)


def session_of(
    setting: str, layers: int, width: int, batch: int, world: World, folder: Path
) -> Session:
    config = parse_config(
        {
            "steps": 10**6,
            "global_batch": batch * world.size,
            "precision": "bf16" if world.device.type == "cuda" else "fp32",
            "stability": SETTINGS[setting],
            "logging": {"every_steps": 10**6},
        }
    )
    data = torch.randn(8 * batch * world.size, width)
    task = OwnModelTask(lambda: build(layers, width), data, loss)  # type: ignore[arg-type]
    return open_session(config, task, world, RunDirectory.create(folder / setting))


def block(session: Session, steps: int) -> float:
    """Milliseconds a step of the Trainer's loop."""
    progress = session.progress
    clock = time.perf_counter if session.world.device.type == "cuda" else time.process_time
    session.world.synchronize()
    began = clock()
    for _ in range(steps):
        batch = next(session.batches)
        session.schedule(batch)
        for watcher in session.watchers:
            watcher.before_step(session, batch)
        outcome = session.step.take(batch, progress.step)
        progress.step += 1
        progress.cursor = batch.cursor
        for watcher in session.watchers:
            watcher.after_step(session, batch, outcome)
    session.world.synchronize()
    return 1000 * (clock() - began) / steps


def measure(
    layers: int, width: int, batch: int, steps: int, world: World, folder: Path
) -> dict[str, float]:
    sessions = {s: session_of(s, layers, width, batch, world, folder) for s in SETTINGS}
    times: dict[str, list[float]] = {setting: [] for setting in SETTINGS}
    for session in sessions.values():
        session.open_source()
        block(session, 10)
        session.progress.step = 0
    for _ in range(max(1, steps // BLOCK)):
        for setting, session in sessions.items():
            times[setting].append(block(session, BLOCK))
    return {setting: statistics.median(found) for setting, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600, help="steps of each setting and size")
    parser.add_argument("--batch", type=int, default=256, help="samples of each rank")
    parser.add_argument("--sizes", type=int, default=3, help="how many of the sizes, from below")
    options = parser.parse_args()
    with open_world() as world, tempfile.TemporaryDirectory() as folder:
        name = torch.cuda.get_device_name() if world.device.type == "cuda" else "CPU"
        if world.is_main:
            print(COLUMNS)
        for layers, width in SIZES[: options.sizes]:
            place = Path(folder) / f"{layers}-{width}"
            ms = measure(layers, width, options.batch, options.steps, world, place)
            count = sum(p.numel() for p in build(layers, width).parameters())
            row = [name, world.size, layers, width, count]
            row += [round(ms[setting], 4) for setting in SETTINGS]
            row += [f"{ms[setting] / ms['off'] - 1:+.2%}" for setting in ("default", "all")]
            if world.is_main:
                print(",".join(map(str, row)), flush=True)


if __name__ == "__main__":
    main()
