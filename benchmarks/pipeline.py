"""How long ranks of a pipeline wait, measured and by the formula, for every schedule.

    torchrun --nproc-per-node 2 benchmarks/pipeline.py [--steps 20]

A stack of equal transformer layers, cut into as many stages as there are ranks times stages a rank,
takes steps of 1, 2 and 4 micro-batches for each rank, all of one size. If a step of M micro-batches
takes t(M), the slope between the two largest is what one micro-batch costs a rank that never waits,
and waits(M) = 1 - M slope / t(M). Beside it stands (P - 1) / (v M + P - 1). The last row is what
replicas on the same ranks do with the largest batch. One row a measurement, as CSV; the memory is
the most that any rank's allocator reserved. On the CPU ranks share cores, so that its times say
little.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from drumline.config import parse_config
from drumline.distributed import World, open_world
from drumline.planning.shares import pipeline_bubble
from drumline.run_directory import RunDirectory
from drumline.training.own_model import OwnModelTask
from drumline.training.session import open_session

SCHEDULES = {"gpipe": 1, "1f1b": 1, "interleaved_1f1b": 2, "zero_bubble": 1}
"""With the stages on each rank."""
COLUMNS = (
    "device,ranks,torch,layers,width,length,micro_batch,what,stages_per_rank,micro_batches,step_ms,"
    "samples_per_s,waits,by_the_formula,reserved_gib"
)
WARM = 4


def build(layers: int, width: int) -> nn.Module:
    return nn.Sequential(
        *(
            nn.TransformerEncoderLayer(
                width, width // 64, 4 * width, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
    )


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    return (model(batch) - batch).float().square().mean(dim=(1, 2))


def timed(
    spread: dict[str, Any], batch: int, options: argparse.Namespace, world: World, folder: Path
) -> tuple[float, float]:
    """Milliseconds a step, and GiB reserved on the rank with the most."""
    on_gpu = world.device.type == "cuda"
    config = parse_config(
        {
            "steps": 10**6,
            "global_batch": batch,
            "micro_batch": options.micro_batch,
            "precision": "bf16" if on_gpu else "fp32",
            "distributed": spread,
        }
    )
    world = world.spread_by(config.distributed)
    data = torch.randn(2 * batch, options.length, options.width)
    task = OwnModelTask(lambda: build(options.layers, options.width), data, loss)  # type: ignore[arg-type]
    session = open_session(config, task, world, RunDirectory.create(folder))
    session.open_source()
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    began = 0.0
    for step in range(WARM + options.steps):
        if step == WARM:
            world.synchronize()
            world.barrier("warm")
            began = time.perf_counter()
        session.step.take(next(session.batches), step)
    world.synchronize()
    world.barrier("timed")
    took = 1000 * (time.perf_counter() - began) / options.steps
    reserved = torch.cuda.max_memory_reserved() / 2**30 if on_gpu else float("nan")
    most = max(world.control.gather(reserved))
    session.strategy.teardown()
    session.events.close()
    return took, most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20, help="timed steps of each measurement")
    parser.add_argument("--layers", type=int, default=16, help="layers of the whole model")
    parser.add_argument("--width", type=int, default=1024, help="width of a layer, times 64")
    parser.add_argument("--length", type=int, default=512, help="positions of a sample")
    parser.add_argument("--micro-batch", type=int, default=4, help="samples of a micro-batch")
    options = parser.parse_args()
    with open_world() as world, tempfile.TemporaryDirectory() as root:
        name = torch.cuda.get_device_name() if world.device.type == "cuda" else "CPU"
        fixed = [name, world.size, torch.__version__, options.layers, options.width]
        fixed += [options.length, options.micro_batch]
        passes = [world.size * factor for factor in (1, 2, 4)]
        if world.is_main:
            print(COLUMNS)

        def show(*values: Any) -> None:
            if world.is_main:
                print(",".join(map(str, [*fixed, *values])), flush=True)

        for schedule, stages in SCHEDULES.items():
            spread = {
                "mode": "hybrid",
                "mesh": {"pipeline": world.size},
                "pipeline": {"schedule": schedule, "stages_per_rank": stages},
            }
            times, memory = {}, {}
            for count in passes:
                place = Path(root) / f"{schedule}-{count}"
                batch = count * options.micro_batch
                times[count], memory[count] = timed(spread, batch, options, world, place)
            slope = (times[passes[2]] - times[passes[1]]) / (passes[2] - passes[1])
            for count in passes:
                rate = 1000 * count * options.micro_batch / times[count]
                waits = 1 - count * slope / times[count]
                formula = pipeline_bubble(world.size, count, stages)
                row = [schedule, stages, count, round(times[count], 2), round(rate, 1)]
                show(*row, f"{waits:.1%}", f"{formula:.1%}", round(memory[count], 2))
        batch = passes[2] * options.micro_batch
        ms, most = timed({"mode": "distributed"}, batch, options, world, Path(root) / "replicas")
        rate = round(1000 * batch / ms, 1)
        show("replicas", "", passes[2] // world.size, round(ms, 2), rate, "", "", round(most, 2))


if __name__ == "__main__":
    main()
