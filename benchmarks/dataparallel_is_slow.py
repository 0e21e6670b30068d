"""What nn.DataParallel costs: its steps beside those of DDP, for the same model and global batch.

    python benchmarks/dataparallel_is_slow.py [--gpus 4] [--models transformer,cnn]

Each model is trained through the Trainer's own step in mode `none` on one device, in mode
`dataparallel` in one process that uses all of them, and in mode `distributed` with a process for
each. The three take turns, `--repeat` times, and medians count. A step time is the median of blocks
of ten steps; warm-up steps are left out. One row a model, as CSV. Needs two GPUs or more: on the
CPU DataParallel is the model itself, so its row there says nothing.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from memory_models import LanguageModel, LanguageModelSize, Samples, next_token_loss
from torch import Tensor, nn

from drumline.config import parse_config
from drumline.distributed import open_world
from drumline.run_directory import RunDirectory
from drumline.training.order import SampleOrder
from drumline.training.own_model import OwnModelTask
from drumline.training.session import open_session
from drumline.training.source import MapSource, Source

MODES = ("none", "dataparallel", "distributed")
BLOCK, WARM_UP = 10, 15
COLUMNS = (
    *("device", "gpus", "torch", "cuda", "model", "parameters", "global_batch", "precision"),
    *("none_ms", "dataparallel_ms", "distributed_ms", "dataparallel_over_distributed"),
    *("dataparallel_speedup", "distributed_speedup"),
)


@dataclass(frozen=True)
class Subject:
    """A model to train: how it is built, samples for each device, their tensors and its loss."""

    build: Callable[[], nn.Module]
    per_device: int
    shapes: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    loss: Callable[[nn.Module, Any], Tensor]


def _transformer() -> Subject:
    size = LanguageModelSize(dropout=0.0)
    tokens = ((size.length + 1,), torch.int64)
    return Subject(lambda: LanguageModel(size), 16, (tokens,), next_token_loss)


def _cnn() -> Subject:
    pixels, label = ((3, 64, 64), torch.float32), ((), torch.int64)
    return Subject(_convolutions, 64, (pixels, label), _image_loss)


def _convolutions(width: int = 64, depth: int = 12) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
    for _ in range(depth):
        layers += [nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


def _image_loss(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


SUBJECTS = {"transformer": _transformer, "cnn": _cnn}


class InMemory:
    """A million samples in name, and as many in memory as a step takes; read a batch at once, so
    that no mode waits for its data.
    """

    def __init__(self, subject: Subject, count: int) -> None:
        samples = Samples(count, *subject.shapes)
        self.columns = torch.utils.data.default_collate([samples[n] for n in range(count)])
        self.count = count

    def __len__(self) -> int:
        return 10**6

    def __getitems__(self, numbers: Any) -> tuple[Tensor, ...]:
        chosen = torch.as_tensor(numbers) % self.count
        return tuple(column[chosen] for column in self.columns)


class InMemoryTask(OwnModelTask):
    """The subject's model and loss, with whole batches from memory."""

    def build_source(self) -> Source:
        order = SampleOrder(len(self._data), 0)
        pinned = self.world.device.type == "cuda"
        return MapSource(self._data, order, collated=True, pin_memory=pinned)


def train(given: argparse.Namespace) -> None:
    """One process of one mode: rank 0 writes its median seconds a step."""
    subject = SUBJECTS[given.model]()
    config = parse_config(
        {
            "steps": 10**6,
            "global_batch": given.batch,
            "precision": given.precision,
            "distributed": {"mode": given.mode},
        }
    )
    task = InMemoryTask(subject.build, InMemory(subject, given.batch), subject.loss)
    with open_world(config.distributed) as world, tempfile.TemporaryDirectory() as folder:
        session = open_session(config, task, world, RunDirectory.create(Path(folder)))
        session.open_source()
        times = []
        for step in range(WARM_UP + given.steps + 1):
            if step >= WARM_UP and (step - WARM_UP) % BLOCK == 0:
                world.synchronize()
                times.append(time.perf_counter())
            session.step.take(next(session.batches), step)
        if world.is_main:
            seconds = statistics.median(after - before for before, after in pairwise(times)) / BLOCK
            parameters = sum(p.numel() for p in subject.build().parameters())
            Path(given.answer).write_text(json.dumps({"s": seconds, "parameters": parameters}))
        session.strategy.teardown()
        session.events.close()


def batch_of(model: str, gpus: int, options: argparse.Namespace) -> int:
    return gpus * (options.per_device or SUBJECTS[model]().per_device)


def in_processes(model: str, mode: str, gpus: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train in the processes that the mode wants, and return what rank 0 found."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        given = [__file__, "--model", model, "--mode", mode, "--answer", answer]
        given += ["--batch", batch_of(model, gpus, options), "--steps", options.steps]
        given += ["--precision", options.precision]
        launcher = [sys.executable]
        if mode == "distributed":
            launcher += ["-m", "torch.distributed.run", "--standalone"]
            launcher += ["--nproc-per-node", str(gpus)]
        subprocess.run([*launcher, *map(str, given)], check=True, stdout=subprocess.DEVNULL)
        return json.loads(answer.read_text())


def measure(model: str, gpus: int, options: argparse.Namespace) -> dict[str, Any]:
    """A row: medians over the turns."""
    found: dict[str, list[dict[str, Any]]] = {mode: [] for mode in MODES}
    for _ in range(options.repeat):
        for mode in MODES:
            found[mode].append(in_processes(model, mode, gpus, options))
    ms = {mode: 1e3 * statistics.median(each["s"] for each in found[mode]) for mode in MODES}
    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "gpus": gpus,
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "model": model,
        "parameters": found["none"][0]["parameters"],
        "global_batch": batch_of(model, gpus, options),
        "precision": options.precision,
        **{f"{mode}_ms": round(value, 3) for mode, value in ms.items()},
        "dataparallel_over_distributed": round(ms["dataparallel"] / ms["distributed"], 3),
        "dataparallel_speedup": round(ms["none"] / ms["dataparallel"], 3),
        "distributed_speedup": round(ms["none"] / ms["distributed"], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, default=torch.cuda.device_count() or 2)
    parser.add_argument("--models", default=",".join(SUBJECTS), help="of: " + ", ".join(SUBJECTS))
    parser.add_argument("--steps", type=int, default=60, help="timed steps of each training")
    parser.add_argument("--repeat", type=int, default=2, help="turns of the modes")
    parser.add_argument("--per-device", type=int, help="samples; by default the model's own")
    parser.add_argument("--precision", default="bf16", choices=("fp32", "tf32", "bf16"))
    parser.add_argument("--out", type=Path, help="CSV file")
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    for name in ("model", "mode", "answer"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.answer:
        train(options)
        return
    rows = []
    print(",".join(COLUMNS))
    for model in options.models.split(","):
        rows.append(measure(model, options.gpus, options))
        print(",".join(str(rows[-1][column]) for column in COLUMNS), flush=True)
    if options.out:
        with options.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
