"""Training steps a second of CLSTM-PPO: steps in all environments, acted and learned from.

    python benchmarks/reinforcement_speed.py
    python benchmarks/reinforcement_speed.py --sizes 4096:4,16384:4 --precision tf32
    torchrun --nproc-per-node 4 benchmarks/reinforcement_speed.py --sizes 4096:4     (weak scaling)

A size is environments a process, and passes over a rollout. Sizes are those that peers are measured
at: rollouts of 128 steps, four minibatches, LSTMs of 256 for actor and critic, no window. One
rollout warms up. Columns: time acting (rolling out and making minibatches of it) and learning, as
parts of the whole. One row a size, as CSV.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import profile

from drumline.config import ClusterEnvironment, RunConfig, parse_config
from drumline.config.section import import_object
from drumline.distributed import World, open_world
from drumline.run_directory import RunDirectory
from drumline.training.session import Session, open_session

STEPS, MINIBATCHES, HIDDEN = 128, 4, 256
COLUMNS = (
    "device,processes,threads,torch,precision,environment,environments,epochs,micro_batch,"
    "training_steps_per_s,acting,learning"
)


def config_of(
    asked: argparse.Namespace,
    environments: int,
    epochs: int,
    environment: dict[str, Any] | None = None,
) -> RunConfig:
    """The run to measure; without an environment of its own in the one asked for."""
    size = environments * STEPS
    data: dict[str, Any] = {
        "task": {
            "name": "clstm_ppo",
            "environment": environment
            or {"name": asked.environment, "episode_limit": asked.episode_limit},
            "environments": environments,
            "rollout_steps": STEPS,
            "sequence_length": asked.sequence_length,
            "rollout_epochs": epochs,
            "graphs": asked.graphs,
            "total_steps": 10**12 // size * size,
            "policy": {"hidden": HIDDEN, "heads": [64, 64], "sequences": asked.sequences},
        },
        "global_batch": size // MINIBATCHES,
        "micro_batch": asked.micro_batch,
        "precision": asked.precision,
        "clip_norm": 0.5,
        "optimizer": {"lr": 3e-4},
        "logging": {"every_steps": 10**6},
    }
    return parse_config(data)


def rollout(session: Session, world: World) -> tuple[float, float]:
    """Seconds acting and learning, for one rollout and all its updates."""
    acting = learning = 0.0
    updates = session.config.task.rollout_epochs * MINIBATCHES  # type: ignore[union-attr]
    for _ in range(updates):
        world.synchronize()
        began = time.perf_counter()
        batch = next(session.batches)
        world.synchronize()
        acted = time.perf_counter()
        session.schedule(batch)
        outcome = session.step.take(batch, session.progress.step)
        assert outcome.taken, outcome.reason
        session.progress.step += 1
        world.synchronize()
        acting, learning = acting + acted - began, learning + time.perf_counter() - acted
    return acting, learning


@contextmanager
def opened(config: RunConfig, world: World) -> Iterator[Session]:
    """A run that is ready for its first step, in a folder of its own."""
    assert config.task is not None
    with tempfile.TemporaryDirectory() as folder:
        task = import_object(config.task.implementation)()
        session = open_session(config, task, world, RunDirectory.create(Path(folder) / "run"))
        session.open_source()
        try:
            yield session
        finally:
            session.source.close()
            session.strategy.teardown()
            session.events.close()


def measure(asked: argparse.Namespace, world: World, environments: int, epochs: int) -> str:
    config = config_of(asked, environments * world.size, epochs)
    with opened(config, world) as session:
        rollout(session, world)
        acting = learning = 0.0
        rollouts = 0
        while acting + learning < asked.seconds:
            acted, learned = rollout(session, world)
            acting, learning, rollouts = acting + acted, learning + learned, rollouts + 1
        if asked.profile and world.is_main:
            show_kernels(session, world, asked.profile)
    whole = acting + learning
    speed = rollouts * environments * world.size * STEPS / whole
    device = torch.cuda.get_device_name() if world.device.type == "cuda" else "cpu"
    facts = [
        *(device, world.size, torch.get_num_threads(), torch.__version__, asked.precision),
        *(asked.environment, environments * world.size, epochs, asked.micro_batch or ""),
        *(f"{speed:.0f}", f"{acting / whole:.3f}", f"{learning / whole:.3f}"),
    ]
    return ",".join(map(str, facts))


def show_kernels(session: Session, world: World, rows: int) -> None:
    """Where the time of one rollout and its updates goes, to standard error."""
    with profile() as found:
        rollout(session, world)
    order = "self_cuda_time_total" if world.device.type == "cuda" else "self_cpu_time_total"
    table = found.key_averages().table(order, row_limit=rows, max_name_column_width=60)
    print(table, file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="8:10,256:4,4096:4", help="environments:epochs, ...")
    parser.add_argument("--seconds", type=float, default=10.0, help="time of each measurement")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--environment", default="pendulum_memory")
    parser.add_argument("--episode-limit", type=int, default=1000)
    parser.add_argument("--micro-batch", type=int)
    parser.add_argument("--sequences", default="auto")
    parser.add_argument("--sequence-length", type=int, help="by default the whole rollout")
    parser.add_argument("--no-graphs", dest="graphs", action="store_false")
    parser.add_argument("--profile", type=int, default=0, help="rows of a table of kernels")
    asked = parser.parse_args()
    sizes = [tuple(map(int, size.split(":"))) for size in asked.sizes.split(",")]
    first = config_of(asked, MINIBATCHES, 1)
    with open_world(first, ClusterEnvironment.detect()) as world:
        if world.is_main:
            print(COLUMNS, flush=True)
        for environments, epochs in sizes:
            row = measure(asked, world, environments, epochs)
            if world.is_main:
                print(row, flush=True)


if __name__ == "__main__":
    main()
