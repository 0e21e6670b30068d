"""Two ranks, one at half speed: throughput with equal shares and with measured ones, beside the sum
of what each rank does alone.

    python benchmarks/unequal_devices.py

Takes about two minutes a turn. With GPUs, of which it uses two, rank 1's is shared with a child of
that rank that always has a matrix product queued there: the driver gives each its slices of time.
Without, it needs two cores with nothing else running on them. Rank 0 is then bound to one core;
rank 1 to another, beside a child of it that never rests, so that the kernel's scheduler gives it
half of that core. Everything else is as a user has it: `drumline run`, and a model of the user's
own. Speeds are samples a second from the runs' `step` events, the first steps left out; the table
has medians over turns. A row a turn, as CSV, comes last.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from drumline import RunConfig, Trainer
from drumline.events import read_events

ON_GPUS = torch.cuda.is_available()
GLOBAL_BATCH, MICRO_BATCH, WIDTH = (768, 64, 256) if ON_GPUS else (384, 8, 64)
CLASSES = 10
EVENT_STEPS = 2  # between step events, which are a message among ranks
WARM_UP = {"equal": 2, "measured": 20}
COLUMNS = "device,torch,rank_0_alone,rank_1_alone,sum,equal,measured,shares"
COLUMNS += ",equal_over_sum,measured_over_sum"


def build(width: int = WIDTH) -> nn.Module:
    """Convolutions: much work for each parameter, so that sending gradients is a small part."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1), nn.ReLU()]
    for _ in range(4):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
    pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES)]
    return nn.Sequential(*layers, *pooled)


def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    """Of each sample."""
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def train(core: int, batch: int, steps: int, shares: str, run: str) -> None:
    """What every rank runs, on its own core."""
    core += int(os.environ.get("RANK", "0"))
    if not ON_GPUS:
        os.sched_setaffinity(0, {core})
        torch.set_num_threads(1)
    other = never_rest(core) if core == 1 else None
    random = torch.Generator().manual_seed(0)
    images = torch.randn(4 * GLOBAL_BATCH, 3, 32, 32, generator=random)
    labels = torch.randint(0, CLASSES, (len(images),), generator=random)
    config = RunConfig(
        name="unequal",
        steps=steps,
        global_batch=batch,
        micro_batch=MICRO_BATCH,
        run_dir=run,
        logging={"every_steps": EVENT_STEPS},
        checkpoint={"at_end": False},
        distributed={"shares": shares},
    )
    Trainer(config, model=build, data=TensorDataset(images, labels), loss=loss).fit()
    if other is not None:
        other.kill()
        other.wait()


def never_rest(number: int) -> subprocess.Popen[bytes]:
    """Take all the time of this core, or of a GPU, that can be had, in a process of this one's
    priority.

    A child belongs to its parent's session, so that kernels which share a core among sessions first
    see one. It ends with its parent.
    """
    alive = f"while os.getppid() == {os.getpid()}:"
    lines = ["import os", "print(flush=True)", f"{alive} pass"]
    environment = dict(os.environ)
    if ON_GPUS:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
        environment["CUDA_VISIBLE_DEVICES"] = visible[number if len(visible) > 1 else 0]
        lines = [
            "import os, torch",
            "a = torch.randn(4096, 4096, device='cuda')",
            "done = [torch.cuda.Event() for _ in range(4)]",
            "(a @ a).sum().item(); print(flush=True)",
            alive,
            "    for event in done: event.synchronize(); a @ a; event.record()",
        ]
    words = [sys.executable, "-c", "\n".join(lines)]
    child = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()  # it has begun
    return child


def start(
    folder: Path, name: str, *, core: int = 0, batch: int, steps: int, shares: str = "equal"
) -> subprocess.Popen[bytes]:
    """A run under way: of one process on a core, or of two ranks on theirs."""
    given = [__file__, "--core", core, "--batch", batch, "--steps", steps, "--shares", shares]
    given += ["--train", folder / name]
    devices = "0,1" if ON_GPUS else "cpu:2"
    launcher = ["-m", "drumline", "run", "--gpus", devices, "--run-dir", folder / name]
    both = batch == GLOBAL_BATCH
    words = [sys.executable, *(launcher if both else []), *given]
    environment = dict(os.environ)
    if ON_GPUS and not both:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
        environment["CUDA_VISIBLE_DEVICES"] = visible[core]
    with (folder / f"{name}.log").open("w") as log:
        return subprocess.Popen([str(w) for w in words], stdout=log, stderr=log, env=environment)


def finish(process: subprocess.Popen[bytes], folder: Path, name: str) -> None:
    if process.wait() != 0:
        sys.exit((folder / f"{name}.log").read_text())


def speed(folder: Path, name: str, last: int) -> float:
    """Samples a second over the last steps."""
    found = [e for e in read_events(folder / name / "events.jsonl") if e["kind"] == "step"]
    first, end = found[-1 - last // EVENT_STEPS], found[-1]
    return float((end["samples"] - first["samples"]) / (end["t"] - first["t"]))


def shares_of(folder: Path, name: str) -> list[int]:
    """The shares that a run ended with."""
    events = read_events(folder / name / "events.jsonl")
    changes: list[list[int]] = [e["new"] for e in events if e["kind"] == "shares_changed"]
    return changes[-1] if changes else [GLOBAL_BATCH // 2] * 2


def measure(folder: Path, steps: int) -> dict[str, Any]:
    """All runs. Each rank's own speed is measured while the other trains, too: what they share of
    the machine they share in all runs.
    """
    half = GLOBAL_BATCH // 2
    many = (2 * steps, steps)  # rank 0 takes half the time
    alone = [
        start(folder, f"rank_{core}", core=core, batch=half, steps=many[core] + 2)
        for core in (0, 1)
    ]
    found: dict[str, Any] = {}
    for core, process in enumerate(alone):
        finish(process, folder, f"rank_{core}")
        found[f"rank_{core}_alone"] = speed(folder, f"rank_{core}", many[core])
    for shares, warm_up in WARM_UP.items():
        more = {"batch": GLOBAL_BATCH, "steps": warm_up + steps, "shares": shares}
        finish(start(folder, shares, **more), folder, shares)
        found[shares] = speed(folder, shares, steps)
    return found | {"shares": shares_of(folder, "measured")}


def report(turns: list[dict[str, Any]]) -> None:
    """A table of medians, and the rows for the record."""
    for found in turns:
        found["sum"] = found["rank_0_alone"] + found["rank_1_alone"]
        for way in WARM_UP:
            found[f"{way}_over_sum"] = found[way] / found["sum"]
    rows = [
        ("rank 0 alone", "rank_0_alone"),
        (f"rank 1 alone, on half a {'GPU' if ON_GPUS else 'core'}", "rank_1_alone"),
        ("sum of both", "sum"),
        ("two ranks, equal shares", "equal"),
        ("two ranks, measured shares", "measured"),
    ]
    for name, key in rows:
        of_sum = median(found[key] / found["sum"] for found in turns)
        print(
            f"{name:42} {median(f[key] for f in turns):8.2f} samples/s   {of_sum:7.1%} of the sum"
        )
    print(COLUMNS)
    for found in turns:
        found["shares"] = " + ".join(map(str, found["shares"]))
        numbers = [found[column] for column in COLUMNS.split(",")[2:]]
        written = [n if isinstance(n, str) else f"{n:.3f}" for n in numbers]
        print(",".join([processor(), torch.__version__, *written]))


def processor() -> str:
    if ON_GPUS:
        return torch.cuda.get_device_name()
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measured-steps", type=int, default=6, help="steps of each speed")
    parser.add_argument("--turns", type=int, default=3, help="of all runs")
    for name in ("core", "batch", "steps"):
        parser.add_argument(f"--{name}", type=int, default=0, help=argparse.SUPPRESS)
    for name in ("shares", "train"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train:
        train(given.core, given.batch, given.steps, given.shares, given.train)
        return
    if torch.cuda.device_count() == 1:
        sys.exit("This needs two GPUs, or none: set CUDA_VISIBLE_DEVICES= to measure on the CPU.")
    turns = []
    for _ in range(given.turns):
        with tempfile.TemporaryDirectory() as folder:
            turns.append(measure(Path(folder), given.measured_steps))
    report(turns)


if __name__ == "__main__":
    main()
