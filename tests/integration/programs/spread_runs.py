"""One rank of a world that trains many small models one after the other, each in a mode.

Starting processes takes longer than the training, so that one launch does many cases.

Arguments: rank, world size, port, a JSON file with a list of cases, and the backend. A case has

- `name`, `model`, `folder` (its run directory) and `config` (keys of the RunConfig);
- maybe `fault` ({"rank", "call"}: an infinite loss there; with "parameter", its gradient is);
- maybe `break` ({"modes", "where", "on"}: modes whose set-up fails on some ranks);
- maybe `from`: the folder of a case whose checkpoints it goes on from;
- maybe `clock`: each rank's `VirtualClock`, by which all time is told.

Rank 0 writes `found.json` into the folder: losses by step, mode, warnings, skipped steps, and every
rank's loss scale. A case with `refused` is to fail, and leaves `refused.json` with what each rank
raised.
"""

from __future__ import annotations

import itertools
import json
import shutil
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import spread_models
import torch
from torch import Tensor, nn
from virtual_clock import ClockedTask, VirtualClock

from drumline import RunConfig, Trainer
from drumline.config import ClusterEnvironment, DistributedConfig, Mode
from drumline.distributed import World, open_world
from drumline.distributed import strategies as modes
from drumline.events import read_events
from drumline.run_directory import RunDirectory
from drumline.tasks.sae.task import SAETask
from drumline.training.batches import to_device
from drumline.training.own_model import OwnModelTask
from drumline.training.session import open_session
from drumline.training.signals import StopSignals
from drumline.training.task import Task

WAIT_S = 480.0
CLASSES = {"distributed": modes.DataParallelReplicas, "sharded": modes.Sharded}


def main(rank: int, size: int, port: int, cases: list[dict[str, Any]], backend: Any) -> None:
    """All cases, in one world."""
    environment = ClusterEnvironment("mpirun", rank, size, rank, size, "127.0.0.1", port)
    config = DistributedConfig(mode=Mode.DISTRIBUTED, backend=backend)
    with open_world(config, environment) as world:
        for case in cases:
            try:
                train(case, world)
            except Exception as error:
                if not case.get("refused"):
                    error.add_note(f"in case {case['name']} on rank {rank}")
                    raise
                said = {"kind": type(error).__name__, "message": str(error)}
                told = world.control.gather(said)
                (Path(case["folder"]) / "refused.json").write_text(json.dumps(told))


def train(case: dict[str, Any], world: World) -> None:
    """One case: as `Trainer.fit`, in a world that is open already."""
    config = RunConfig(**case["config"])
    world = world.spread_by(config.distributed)
    run = RunDirectory.create(Path(case["folder"]))
    if "from" in case and world.is_main:
        copy_checkpoints(Path(case["from"]), run)
    world.barrier("checkpoints are there")
    clock = VirtualClock(**case["clock"][world.rank]) if "clock" in case else None
    task = task_of(case, world.rank, clock)
    fault = case.get("break", {"modes": []})
    with ExitStack() as stack, StopSignals() as signals:
        if clock is not None:
            stack.enter_context(clock.running())
        for mode in fault["modes"]:
            stack.enter_context(breaking(mode, world.rank, fault["where"], fault["on"]))
        session = open_session(config, task, world, run)
        spoil(session.model, case.get("fault"), world.rank)
        if clock is not None:
            stack.enter_context(clock.waiting(world.control, session.strategy))
        trainer = Trainer(config, task)
        trainer._end(session, trainer._loop(session, signals), 1.0)
    scales = world.control.gather(session.scaler.state_dict())
    forwards = world.control.gather(max(clock.forwards) if clock else None)
    digests = world.control.gather(digest(session.strategy.weights().state_dict()))
    session.strategy.teardown()
    session.events.close()
    if world.is_main:
        events = read_events(run.events_path)
        found = {
            "losses": {e["step"]: e["loss"] for e in events if e["kind"] == "step"},
            "norms": {e["step"]: e["grad_norm"] for e in events if e["kind"] == "step"},
            "metrics": [e["metrics"] for e in events if e["kind"] == "evaluation"],
            "mode": [e["mode"] for e in events if e["kind"] == "run_started"],
            "warnings": [e["message"] for e in events if e["kind"] == "warning"],
            "skips": [e["reason"] for e in events if e["kind"] == "step_skipped"],
            "scales": scales,
            "skipped": session.progress.skipped,
            "digests": digests,
            "largest_forward": forwards,
        }
        (run.path / "found.json").write_text(json.dumps(found))
    world.barrier("end of a case")


def copy_checkpoints(earlier: Path, run: RunDirectory) -> None:
    """Take those of a case that this world has done, or another one that runs at the same time."""
    end = time.monotonic() + WAIT_S
    while not (earlier / "found.json").exists():
        assert time.monotonic() < end, f"{earlier} was not done in time"
        time.sleep(0.05)
    shutil.copytree(earlier / "checkpoints", run.checkpoints_path, dirs_exist_ok=True)


def task_of(case: dict[str, Any], rank: int, clock: VirtualClock | None = None) -> Task:
    """The case's task, with its fault."""
    if case["model"] == "sae":
        return SAETask()
    model, data, loss = spread_models.ALL[case["model"]]
    if clock is not None:
        return ClockedTask(model, data(), loss, clock)
    fault, calls = case.get("fault"), 0
    fault = None if fault and "parameter" in fault else fault

    def faulty(module: nn.Module, batch: Any) -> Tensor:
        nonlocal calls
        losses = loss(module, batch)
        if fault and fault["rank"] == rank and fault["call"] == calls:
            losses = losses * torch.inf
        calls += 1
        return losses

    def evaluate(module: nn.Module) -> dict[str, float]:
        samples = to_device(data()[:], next(module.parameters()).device)
        return {"mean_loss": float(loss(module, samples).mean())}

    return OwnModelTask(model, data(), faulty, evaluate)


def spoil(model: nn.Module, fault: dict[str, Any] | None, rank: int) -> None:
    """Let a gradient of one parameter be infinite at one backward of one rank."""
    if not fault or "parameter" not in fault or fault["rank"] != rank:
        return
    calls = itertools.count()
    parameter = model.get_parameter(fault["parameter"])
    parameter.register_hook(lambda g: g * torch.inf if next(calls) == fault["call"] else g)


def breaking(mode: str, rank: int, where: str, on: list[int]) -> Any:
    """A patch that lets a mode's set-up fail on some ranks."""
    original = getattr(CLASSES[mode], where)

    def failing(*arguments: Any, **options: Any) -> Any:
        if rank in on:
            raise RuntimeError(f"{mode} is broken for a test")
        return original(*arguments, **options)

    return patch.object(CLASSES[mode], where, failing)


def digest(weights: dict[str, Tensor]) -> str:
    """A sum over all bytes, to compare replicas."""
    return str({name: float(tensor.double().sum()) for name, tensor in weights.items()})


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[4]).read_text())
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), given, sys.argv[5])
