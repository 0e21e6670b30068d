"""Whether policies that were trained on some years trade better than random ones on later years, as
CSV: each measure of each strategy, with its spread over seeds.

    python benchmarks/trading_seeds.py [--seeds 0,1,2,3,4] [--cases weights,trades] > trading.csv

Each case is the example's config with one form of actions, trained once for each seed and traded on
the days from 2020 on with its last checkpoint, beside random actions, buying and holding, and equal
parts. Nothing is chosen by the test days. Progress, and tables at the end, go to standard error.
"""

from __future__ import annotations

import argparse
import csv
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from drumline.config import load_config
from drumline.run_directory import RunDirectory
from drumline.tasks.clstm_ppo.trading.backtest_runs import backtest_runs
from drumline.tasks.clstm_ppo.trading.report import Report

ROOT = Path(__file__).parents[1]
CASES = {
    "weights": ["task.environment.actions=weights"],
    "trades": ["task.environment.actions=trades", "task.environment.hmax=1000"],
}
COLUMNS = [
    *("case", "strategy", "tries", "measure", "mean", "deviation", "least", "most"),
    *("first_day", "last_day", "episodes", "cpu", "torch", "date", "commit"),
]


def trained(case: str, seed: int, episodes: int, folder: Path) -> RunDirectory:
    """Train once; its run directory."""
    run = folder / f"{case}-{seed}"
    command = [
        *(sys.executable, "-m", "drumline", "train", ROOT / "examples/trading.yaml"),
        *(f"seed={seed}", f"num_episodes={episodes}", *CASES[case]),
        *("--gpus", "cpu", "--run-dir", run, "--json"),
    ]
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    print(f"{case} seed {seed}: {time.perf_counter() - began:.0f} s", file=sys.stderr)
    return RunDirectory(run)


def rows(case: str, episodes: int, report: Report) -> Iterator[dict[str, Any]]:
    """One for each strategy and measure."""
    told = report.as_dict()
    for strategy, found in told["strategies"].items():
        for measure, spread in found["measures"].items():
            numbers = {k: "" if v is None else round(v, 4) for k, v in spread.items()}
            yield {
                "case": case,
                "strategy": strategy,
                "tries": found["tries"],
                "measure": measure,
                **numbers,
                "first_day": told["first_day"],
                "last_day": told["last_day"],
                "episodes": episodes,
                **facts(),
            }


def facts() -> dict[str, str]:
    """What every row says of where it was measured."""
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    lines = Path("/proc/cpuinfo").read_text().splitlines() if platform.system() == "Linux" else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return {
        "cpu": next(names, platform.processor()),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit,
    }


def table(case: str, report: Report) -> str:
    """For reading."""
    lines = [f"\n{case}: {report.caption()}"]
    for strategy in report.strategies:
        spread = strategy.spread()
        shown = (
            f"{name} {found.mean:8.3f} ± {found.deviation:5.3f} "
            f"[{found.least:.3f}, {found.most:.3f}]"
            for name, found in spread.items()
            if name in ("cumulative_return", "sharpe", "max_drawdown")
        )
        lines.append(f"{strategy.name:14}" + "   ".join(shown))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--episodes", type=int, default=1000)
    asked = parser.parse_args()
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    tables = []
    with tempfile.TemporaryDirectory() as folder:
        for case in asked.cases.split(","):
            seeds = map(int, asked.seeds.split(","))
            runs = [trained(case, seed, asked.episodes, Path(folder)) for seed in seeds]
            report = backtest_runs([(run, load_config(run.config_path, [])) for run in runs])
            writer.writerows(rows(case, asked.episodes, report))
            sys.stdout.flush()
            tables.append(table(case, report))
    print(*tables, sep="\n", file=sys.stderr)


if __name__ == "__main__":
    main()
