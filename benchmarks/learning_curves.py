"""Whether the LSTM learns what only memory can do: returns over environment steps, as CSV.

    python benchmarks/learning_curves.py [--seeds 0,1,2] [--cases cartpole,pendulum] [--jobs 1]
        > curves.csv

Each case is an example's config, on one process and on two with the same environments, and with
the LSTM's state zeroed at every step. Every so often 100 episodes are played with the likeliest
actions. `--jobs` trains several at once; seconds are then those of a busy machine, returns are the
same. Progress, and at the end a table of the last evaluations, go to standard error.
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from drumline.events import read_events

ROOT = Path(__file__).parents[1]
EVALUATIONS = 12
CASES: dict[str, tuple[str, str, list[str]]] = {
    "cartpole": ("cartpole_memory", "cpu:1", []),
    "cartpole two processes": ("cartpole_memory", "cpu:2", []),
    "cartpole zeroed": ("cartpole_memory", "cpu:1", ["task.policy.carry_state=false"]),
    "pendulum": ("pendulum_memory", "cpu:1", []),
    "pendulum two processes": ("pendulum_memory", "cpu:2", []),
    "pendulum zeroed": ("pendulum_memory", "cpu:1", ["task.policy.carry_state=false"]),
}
COLUMNS = [
    *("case", "seed", "processes", "environment_steps", "episode_return", "episode_return_std"),
    *("episodes", "seconds", "cpu", "torch", "date", "commit"),
]


def curve(case: str, seed: int, threads: int) -> Iterator[dict[str, Any]]:
    """Train once; a row for each evaluation."""
    environ = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    example, devices, overrides = CASES[case]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [
            *(sys.executable, "-m", "drumline", "train", ROOT / f"examples/{example}.yaml"),
            *(f"seed={seed}", "logging.every_steps=1", *overrides),
            *("--gpus", devices, "--run-dir", run, "--json"),
        ]
        began = time.perf_counter()
        planned = 1920 if example == "cartpole_memory" else 2480
        every = f"evaluation.every_steps={planned // EVALUATIONS}"
        subprocess.run([*command, every], check=True, stdout=subprocess.DEVNULL, env=environ)
        seconds = time.perf_counter() - began
        events = read_events(run / "events.jsonl")
    steps = {e["step"]: e["metrics"]["environment_steps"] for e in events if e["kind"] == "step"}
    for event in events:
        if event["kind"] == "evaluation":
            metrics = event["metrics"]
            yield {
                "case": case,
                "seed": seed,
                "processes": devices.removeprefix("cpu:"),
                "environment_steps": int(steps[event["step"]]),
                "episode_return": round(metrics["episode_return"], 2),
                "episode_return_std": round(metrics["episode_return_std"], 2),
                "episodes": int(metrics["episodes"]),
                "seconds": round(seconds, 1),
            }


def facts() -> dict[str, str]:
    """What every row says of where it was measured."""
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "cpu": _cpu(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit,
    }


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if platform.system() == "Linux" else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--cases", default="", help="starts of names, with commas")
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    starts = tuple(asked.cases.split(","))
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    last = []
    cases = [name for name in CASES if name.startswith(starts)]
    runs = [(case, seed) for case in cases for seed in map(int, asked.seeds.split(","))]
    threads = max(1, len(os.sched_getaffinity(0)) // (2 * asked.jobs))
    with ThreadPoolExecutor(asked.jobs) as pool:
        for rows in pool.map(lambda run: list(curve(*run, threads)), runs):
            writer.writerows({**row, **facts()} for row in rows)
            sys.stdout.flush()
            last.append(rows[-1])
            print(_line(rows[-1]), file=sys.stderr)
    print("\nafter the last step:", *map(_line, last), sep="\n", file=sys.stderr)


def _line(row: dict[str, Any]) -> str:
    spread = f"{row['episode_return']:8.1f} ± {row['episode_return_std']:.1f}"
    return f"{row['case']:24} seed {row['seed']}  {row['environment_steps']:>7} steps {spread}"


if __name__ == "__main__":
    main()
