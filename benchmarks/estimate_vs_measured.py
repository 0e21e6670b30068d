"""Predicted beside measured step time: `python benchmarks/estimate_vs_measured.py`.

Calibrates a config as `drumline estimate --calibrate` does, then trains it with `drumline train`
on each number of devices, and prints both as a table and as CSV. Without arguments it takes a TopK
SAE on random activations, of a size for the devices that are there, on 1, 2 and 4 of them.

    python benchmarks/estimate_vs_measured.py                          the GPUs that are there
    python benchmarks/estimate_vs_measured.py --gpus cpu:1,cpu:2       processes on the CPU
    python benchmarks/estimate_vs_measured.py --config my.yaml --gpus 1,2 global_batch=8192

The measured time is the median over the intervals between the step events of the run, the first
ones left out, so that what happens once or seldom does not count. Events are stamped to the
millisecond.
"""

from __future__ import annotations

import argparse
import csv
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from drumline.bench.calibration import calibrate
from drumline.cli.estimate import parse_counts
from drumline.config import RunConfig, load_config
from drumline.events import read_events
from drumline.hardware import Machine
from drumline.launch.preflight import visible_machine
from drumline.planning.estimate import Estimate, estimate
from drumline.planning.prices import PriceList

EVERY = 50
WARM_UP_STEPS = 50
SIZES = {
    "cpu": {"width": 128, "rows": 20_000, "latents": 1024, "batch": 1024},
    "gpu": {"width": 1024, "rows": 100_000, "latents": 16_384, "batch": 8192},
}


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="estimate-vs-measured-") as folder:
        machine = visible_machine()
        counts, on_cpu = _counts(options.gpus, machine)
        path = options.config or _sae(Path(folder), "cpu" if on_cpu else "gpu")
        given = [*options.overrides, f"logging.every_steps={EVERY}"]
        given += ["devices=cpu"] if on_cpu else []
        config = load_config(path, given)
        speed = calibrate(config, counts, machine, budget_s=options.budget)
        found = estimate(config, counts, speed, PriceList())
        rows = []
        for row in found.rows:
            devices = f"cpu:{row.devices}" if on_cpu else str(row.devices)
            measured = _measure(path, given, devices, options.steps, Path(folder))
            rows.append(_row(config, found.device, row, measured))
            if options.explain:
                print("\n".join(row.lines), file=sys.stderr)
    _print(rows)
    if options.out:
        _write(rows, options.out)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_KeepLines)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--gpus", help="1,2,4 or cpu:1,cpu:2; by default what is there")
    parser.add_argument("--steps", type=int, default=400, help="steps of each training")
    parser.add_argument("--budget", type=float, default=2.0, help="seconds for each timed share")
    parser.add_argument("--out", type=Path, help="CSV file to write")
    parser.add_argument("--explain", action="store_true", help="show the arithmetic")
    return parser.parse_args()


class _KeepLines(argparse.RawDescriptionHelpFormatter):
    """Help with the line breaks of the module's text."""


def _counts(asked: str | None, machine: Machine) -> tuple[list[int], bool]:
    if asked is not None:
        return parse_counts(asked)
    there = len(machine.usable)
    if not there:
        return [1, 2], True
    return [count for count in (1, 2, 4, 8) if count <= there], False


def _sae(folder: Path, size: str) -> Path:
    """A config with random activations, written into `folder`."""
    numbers = SIZES[size]
    rows = np.random.default_rng(0).standard_normal((numbers["rows"], numbers["width"]), np.float32)
    np.save(folder / "activations.npy", rows)
    config = {
        "name": "estimate",
        "steps": 1000,
        "global_batch": numbers["batch"],
        "precision": "fp32" if size == "cpu" else "tf32",
        "task": {
            "name": "sae",
            "activations": str(folder / "activations.npy"),
            "architecture": "topk",
            "latents": numbers["latents"],
            "k": 32,
            "evaluation": {"samples": 1024},
        },
    }
    path = folder / "sae.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def _measure(path: Path, given: list[str], devices: str, steps: int, folder: Path) -> float:
    """Seconds a step of a real training."""
    run = folder / f"run-{devices.replace(':', '-')}"
    overrides = [
        *given,
        f"devices={json.dumps(devices)}",
        f"steps={steps}",
        "epochs=null",
        "epoch_end=wrap",
        "evaluation.at_end=false",
        "checkpoint.at_end=false",
    ]
    command = [sys.executable, "-m", "drumline", "train", str(path), *overrides]
    command += ["--run-dir", str(run), "--json"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    events = [event for event in read_events(run / "events.jsonl") if event["kind"] == "step"]
    kept = [event for event in events if event["step"] >= WARM_UP_STEPS]
    intervals = [
        (after["t"] - before["t"]) / (after["step"] - before["step"])
        for before, after in pairwise(kept)
    ]
    if not intervals:
        sys.exit(f"{steps} steps are too few: give --steps {WARM_UP_STEPS + 2 * EVERY} or more.")
    return statistics.median(intervals)


def _row(config: RunConfig, device: str, row: Estimate, measured: float) -> dict[str, Any]:
    return {
        "task": config.task.name if config.task else "",
        "precision": config.precision.value,
        "global_batch": config.global_batch,
        "device": device,
        "devices": row.devices,
        "predicted_ms": round(1e3 * row.step_s, 4),
        "measured_ms": round(1e3 * measured, 4),
        "error_percent": round(100 * (row.step_s / measured - 1), 2),
        "predicted_speedup": round(row.speedup, 3),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "python": platform.python_version(),
    }


def _print(rows: list[dict[str, Any]]) -> None:
    one = rows[0]["measured_ms"] if rows[0]["devices"] == 1 else None
    print(f"{rows[0]['device']}, global batch {rows[0]['global_batch']:,}")
    print("devices  predicted ms  measured ms   error  speedup predicted / measured")
    for row in rows:
        measured = f"{one / row['measured_ms']:.2f}" if one else "n/a"
        print(
            f"{row['devices']:7}  {row['predicted_ms']:12.3f}  {row['measured_ms']:11.3f}  "
            f"{row['error_percent']:+5.1f}%  {row['predicted_speedup']:.2f} / {measured}"
        )


def _write(rows: list[dict[str, Any]], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
