"""Two ranks, one at half speed: throughput with equal shares and with measured ones, beside the sum
of what each rank does alone.

    python benchmarks/unequal_devices.py

Needs two cores with nothing else running on them, and takes about two minutes. Rank 0 is bound to
one core; rank 1 to another, beside a child of it that never rests, so that the kernel's scheduler
gives it half of that core. Everything else is as a user has it: `drumline run` on cpu:2, and a
model of the user's own. Speeds are samples a second from the runs' `step` events, the first steps
left out. One row, as CSV, comes last.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from drumline import RunConfig, Trainer
from drumline.events import read_events

GLOBAL_BATCH, MICRO_BATCH, CLASSES = 384, 8, 10
EVENT_STEPS = 2  # between step events, which are a message among ranks
WARM_UP = {"equal": 2, "measured": 20}
COLUMNS = "cpu,torch,rank_0_alone,rank_1_alone,sum,equal,measured,shares"
COLUMNS += ",equal_over_sum,measured_over_sum"


def build(width: int = 64) -> nn.Module:
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
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    if core == 1:
        never_rest()
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


def never_rest() -> None:
    """Take all the time of this core that can be had, in a process of this one's priority.

    A child belongs to its parent's session, so that kernels which share a core among sessions first
    see one. It ends with its parent.
    """
    code = f"import os\nwhile os.getppid() == {os.getpid()}: pass"
    subprocess.Popen([sys.executable, "-c", code])


def start(
    folder: Path, name: str, *, core: int = 0, batch: int, steps: int, shares: str = "equal"
) -> subprocess.Popen[bytes]:
    """A run under way: of one process on a core, or of two ranks on theirs."""
    given = [__file__, "--core", core, "--batch", batch, "--steps", steps, "--shares", shares]
    given += ["--train", folder / name]
    launcher = ["-m", "drumline", "run", "--gpus", "cpu:2", "--run-dir", folder / name]
    both = batch == GLOBAL_BATCH
    words = [sys.executable, *(launcher if both else []), *given]
    with (folder / f"{name}.log").open("w") as log:
        return subprocess.Popen([str(w) for w in words], stdout=log, stderr=log)


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
    """All runs."""
    half = GLOBAL_BATCH // 2
    alone = {"batch": half, "steps": steps + 2}
    found: dict[str, Any] = {}
    for core in (0, 1):
        finish(start(folder, f"rank_{core}", core=core, **alone), folder, f"rank_{core}")
        found[f"rank_{core}_alone"] = speed(folder, f"rank_{core}", steps)
    for shares, warm_up in WARM_UP.items():
        more = {"batch": GLOBAL_BATCH, "steps": warm_up + steps, "shares": shares}
        finish(start(folder, shares, **more), folder, shares)
        found[shares] = speed(folder, shares, steps)
    return found | {"shares": shares_of(folder, "measured")}


def report(found: dict[str, Any]) -> None:
    """A table, and the row for the record."""
    together = found["rank_0_alone"] + found["rank_1_alone"]
    rows = [
        ("rank 0 alone", found["rank_0_alone"]),
        ("rank 1 alone, on half a core", found["rank_1_alone"]),
        ("sum of both", together),
        ("two ranks, equal shares", found["equal"]),
        (f"two ranks, measured shares {found['shares']}", found["measured"]),
    ]
    for name, value in rows:
        print(f"{name:42} {value:8.2f} samples/s   {value / together:7.1%} of the sum")
    shares = " + ".join(map(str, found["shares"]))
    numbers = [found["rank_0_alone"], found["rank_1_alone"], together]
    numbers += [found["equal"], found["measured"]]
    ratios = [found["equal"] / together, found["measured"] / together]
    print(COLUMNS)
    written = [*(f"{n:.2f}" for n in numbers), shares, *(f"{r:.3f}" for r in ratios)]
    print(",".join([processor(), torch.__version__, *written]))


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measured-steps", type=int, default=6, help="steps of each speed")
    for name in ("core", "batch", "steps"):
        parser.add_argument(f"--{name}", type=int, default=0, help=argparse.SUPPRESS)
    for name in ("shares", "train"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train:
        train(given.core, given.batch, given.steps, given.shares, given.train)
        return
    with tempfile.TemporaryDirectory() as folder:
        report(measure(Path(folder), given.measured_steps))


if __name__ == "__main__":
    main()
