"""Predicted beside measured step time: `python benchmarks/estimate_vs_measured.py`.

Calibrates a config as `drumline estimate --calibrate` does, then trains it with `drumline train`
on each number of devices, and prints both as a table and as CSV, with the parts that a step is made
of. Without `--config` it takes TopK SAEs on random activations, sized for the devices that are
there: one that is short of data, one that is short of compute, and on GPUs a large one.

    python benchmarks/estimate_vs_measured.py                          the GPUs that are there
    python benchmarks/estimate_vs_measured.py --gpus cpu:1,cpu:2       processes on the CPU
    python benchmarks/estimate_vs_measured.py --config my.yaml --gpus 1,2 global_batch=8192

The measured time is the median over the intervals between the step events of the run, the first
ones left out, so that what happens once or seldom does not count. Events are stamped to the
millisecond. With `--repeat` calibrations and trainings alternate, and the table shows medians.

Parts are in ms: `read` alone, `compute` with samples at hand, `send` for what is exchanged and not
hidden, and `rest` for what the calibration's whole steps on several devices took beyond those. The
error is that of the sum, and once more without the rest: of a prediction from one device and the
links alone. On several devices the parts are also measured, in steps of the real spread: compute
and send together there, as a step cannot be timed without waiting for others.
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
import time
from collections.abc import Mapping
from dataclasses import dataclass
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
from drumline.planning.calibrated_speed import CalibratedSpeed
from drumline.planning.cost_model import predict
from drumline.planning.plan import micro_batch_of, spread

EVERY = 25
WARM_UP_STEPS = 50
SENT = ("gradients", "sums", "control")
PARTS = (
    "predicted_read",
    "predicted_compute",
    "predicted_send",
    "predicted_rest",
    "measured_read",
    "measured_compute_and_send",
    "measured_in_calibration",
)
SAES: dict[str, dict[str, dict[str, Any]]] = {
    "cpu": {
        "sae-data": {"width": 1024, "rows": 20_000, "latents": 128, "batch": 2048},
        "sae-compute": {"width": 128, "rows": 20_000, "latents": 2048, "batch": 512},
    },
    "gpu": {
        "sae-data": {"width": 1024, "rows": 100_000, "latents": 16_384, "batch": 8192},
        "sae-compute": {"width": 2304, "rows": 30_000, "latents": 32_768, "batch": 4096},
        "sae-large": {"width": 2304, "rows": 30_000, "latents": 65_536, "batch": 8192},
    },
}
PRECISION = {"cpu": "fp32", "sae-data": "tf32", "sae-compute": "bf16", "sae-large": "bf16"}


@dataclass(frozen=True)
class Case:
    """A config to predict and to train, on some numbers of devices."""

    name: str
    path: Path
    given: list[str]
    counts: list[int]
    on_cpu: bool
    config: RunConfig


def main() -> None:
    options = _options()
    began = time.perf_counter()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="estimate-vs-measured-") as name:
        machine, folder = visible_machine(), Path(name)
        for case in cases(options, machine, folder):
            for again in range(options.repeat):
                speed = calibrate(case.config, case.counts, machine, budget_s=options.budget)
                _say(began, f"{case.name}: calibrated")
                for count in case.counts:
                    run = folder / f"{case.name}-{count}-{again}"
                    measured = measure(case, count, options.steps, run)
                    rows.append(_row(case, count, speed, measured, options.explain))
                    _say(began, f"{case.name}: trained on {count}")
                    if options.out:
                        write(rows, options.out)
            _print([row for row in rows if row["config"] == case.name])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=KeepLines)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--only", help="some of the SAEs: sae-data,sae-large")
    parser.add_argument("--gpus", help="1,2,4 or cpu:1,cpu:2; by default what is there")
    parser.add_argument("--steps", type=int, default=200, help="steps of each training")
    parser.add_argument("--budget", type=float, default=0.6, help="seconds for each timed share")
    parser.add_argument("--repeat", type=int, default=1, help="calibrations and trainings of each")
    parser.add_argument("--out", type=Path, help="CSV file, written anew after each training")
    parser.add_argument("--explain", action="store_true", help="show the arithmetic")
    return parser.parse_args()


class KeepLines(argparse.RawDescriptionHelpFormatter):
    """Help with the line breaks of the module's text."""


def cases(options: argparse.Namespace, machine: Machine, folder: Path) -> list[Case]:
    counts, on_cpu = _counts(options.gpus, machine)
    given = [*options.overrides, f"logging.every_steps={EVERY}"]
    given += ["epochs=null", "epoch_end=wrap", f"steps={options.steps}"]
    given += ["devices=cpu"] if on_cpu else []
    if options.config:
        paths = {options.config.stem: options.config}
    else:
        kind = "cpu" if on_cpu else "gpu"
        names = options.only.split(",") if options.only else list(SAES[kind])
        if unknown := set(names) - set(SAES[kind]):
            sys.exit(
                f"There is no {', '.join(sorted(unknown))}: --only takes {', '.join(SAES[kind])}."
            )
        paths = {name: _sae(folder, name, kind) for name in names}
    return [
        Case(name, path, given, counts, on_cpu, load_config(path, given))
        for name, path in paths.items()
    ]


def _counts(asked: str | None, machine: Machine) -> tuple[list[int], bool]:
    if asked is not None:
        return parse_counts(asked)
    there = len(machine.usable)
    if not there:
        return [1, 2], True
    return [count for count in (1, 2, 4, 8) if count <= there], False


def _sae(folder: Path, name: str, kind: str) -> Path:
    """A config with random activations, written into `folder`."""
    numbers = SAES[kind][name]
    generator = np.random.default_rng(0)
    np.save(
        folder / f"{name}.npy",
        generator.standard_normal((numbers["rows"], numbers["width"]), np.float32),
    )
    config = {
        "name": "estimate",
        "steps": 1000,
        "global_batch": numbers["batch"],
        "precision": PRECISION.get(kind, PRECISION[name]),
        "task": {
            "name": "sae",
            "activations": str(folder / f"{name}.npy"),
            "architecture": "topk",
            "latents": numbers["latents"],
            "k": 32,
            "evaluation": {"samples": 1024},
        },
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def measure(
    case: Case, count: int, steps: int, run: Path, environment: Mapping[str, str] | None = None
) -> float:
    """Seconds a step of a real training."""
    devices = f"cpu:{count}" if case.on_cpu else str(count)
    overrides = [*case.given, f"devices={json.dumps(devices)}", f"steps={steps}"]
    overrides += ["evaluation.at_end=false", "checkpoint.at_end=false"]
    command = [sys.executable, "-m", "drumline", "train", str(case.path), *overrides]
    command += ["--run-dir", str(run), "--json"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    events = [event for event in read_events(run / "events.jsonl") if event["kind"] == "step"]
    kept = [event for event in events if event["step"] >= WARM_UP_STEPS]
    intervals = [
        (after["t"] - before["t"]) / (after["step"] - before["step"])
        for before, after in pairwise(kept)
    ]
    if not intervals:
        sys.exit(f"{steps} steps are too few: give --steps {WARM_UP_STEPS + 2 * EVERY} or more.")
    return statistics.median(intervals)


def _row(
    case: Case, count: int, speed: CalibratedSpeed, measured: float, explain: bool
) -> dict[str, Any]:
    shares = spread(case.config, count)
    mode = "none" if count == 1 else "distributed"
    micro = micro_batch_of(case.config, shares)
    found = predict(speed, mode, shares, micro)
    pipeline = speed.work(mode, max(shares), micro, count).pipeline
    assert found.step_s is not None and pipeline is not None
    if explain:
        print("\n".join(f"{part.name}: {part.line}" for part in found.parts), file=sys.stderr)
    seconds = {part.name: part.seconds for part in found.parts}
    whole = speed.calibration.whole.get(count)
    times = {
        "predicted": found.step_s,
        "measured": measured,
        "predicted_read": pipeline.data_s,
        "predicted_compute": seconds["compute"],
        "predicted_send": sum(seconds.get(name, 0.0) for name in SENT),
        "predicted_rest": seconds.get("together", 0.0),
        "measured_read": None if whole is None else whole.data_s,
        "measured_compute_and_send": None if whole is None else whole.compute_s,
        "measured_in_calibration": None if whole is None else whole.step_s,
    }
    return {
        "config": case.name,
        "precision": case.config.precision.value,
        "global_batch": case.config.global_batch,
        "device": speed.device,
        "devices": count,
        **{f"{key}_ms": "" if s is None else round(1e3 * s, 3) for key, s in times.items()},
        "error_percent": _error(found.step_s, measured),
        "error_of_parts_percent": _error(found.step_s - times["predicted_rest"], measured),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "python": platform.python_version(),
    }


def _error(predicted: float, measured: float) -> float:
    return round(100 * (predicted / measured - 1), 2)


def _print(rows: list[dict[str, Any]]) -> None:
    """A line for each number of devices; medians, with the smallest and the largest error."""
    print(title(rows[0]))
    print(
        "devices  predicted =   read | compute +   send +   rest   measured    error  (from, to)  "
        "of parts     read | compute + send   step"
    )
    for count in sorted({row["devices"] for row in rows}):
        some = [row for row in rows if row["devices"] == count]
        errors = [row["error_percent"] for row in some]
        predicted, measured = _median(some, "predicted_ms"), _median(some, "measured_ms")
        error = 100 * (predicted / measured - 1) if predicted and measured else 0.0
        part = {key: _ms(_median(some, f"{key}_ms")) for key in PARTS}
        print(
            f"{count:7}  {_ms(predicted)}  {part['predicted_read']} | "
            f"{part['predicted_compute']} {part['predicted_send']} {part['predicted_rest']}   "
            f"{_ms(measured)}   {error:+5.1f}%  ({min(errors):+5.1f}, {max(errors):+5.1f})  "
            f"{_median(some, 'error_of_parts_percent'):+5.1f}%  "
            f"{part['measured_read']} | {part['measured_compute_and_send']}    "
            f"{part['measured_in_calibration']}",
            flush=True,
        )


def title(row: dict[str, Any]) -> str:
    """What a table is about."""
    return f"{row['config']}: {row['device']}, global batch {row['global_batch']:,}"


def _median(rows: list[dict[str, Any]], key: str) -> float | None:
    known = [row[key] for row in rows if row[key] != ""]
    return statistics.median(known) if known else None


def _ms(value: float | None) -> str:
    return f"{'n/a':>8}" if value is None else f"{value:8.3f}"


def _say(began: float, what: str) -> None:
    print(f"{time.perf_counter() - began:6.1f} s  {what}", file=sys.stderr, flush=True)


def write(rows: list[dict[str, Any]], path: Path) -> None:
    """All rows as a CSV file, anew."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
