"""Step times of this checkout beside another one's: `python benchmarks/step_times.py FOLDER`.

Trains the SAEs of `estimate_vs_measured.py` with the code of this checkout and with that in FOLDER,
in turns on one machine, and prints both as a table and as CSV. FOLDER is another checkout:

    git worktree add ../before COMMIT
    python benchmarks/step_times.py ../before --gpus 1,2 --repeat 3 --out step_times.csv

A time is the median over the intervals between the step events of a run, the first ones left out;
the table shows medians of the repeats, with the smallest and the largest. `cpu_s` is the processor
time of a whole training, all ranks and threads and their start together.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from estimate_vs_measured import Case, KeepLines, cases, measure, title, write

from drumline.launch.preflight import visible_machine

HERE = Path(__file__).resolve().parents[1]


def main() -> None:
    options = _options()
    sides = {"before": options.before.resolve(), "now": HERE}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="step-times-") as name:
        folder, machine = Path(name), visible_machine()
        for case in cases(options, machine, folder):
            turns = itertools.product(range(options.repeat), case.counts, sides.items())
            for again, count, (side, checkout) in turns:
                run = folder / f"{case.name}-{count}-{again}-{side}"
                timed = _timed(case, count, options.steps, run, checkout)
                rows.append(_row(case, count, side, timed))
                if options.out:
                    write(rows, options.out)
            _print([row for row in rows if row["config"] == case.name])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=KeepLines)
    parser.add_argument("before", type=Path, metavar="FOLDER", help="the other checkout")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--only", help="some of the SAEs: sae-data,sae-large")
    parser.add_argument("--gpus", help="1,2,4 or cpu:1,cpu:2; by default what is there")
    parser.add_argument("--steps", type=int, default=500, help="steps of each training")
    parser.add_argument("--repeat", type=int, default=3, help="trainings of each")
    parser.add_argument("--out", type=Path, help="CSV file, written anew after each training")
    options = parser.parse_args()
    if not (options.before / "src" / "drumline").is_dir():
        parser.error(f"{options.before} is no checkout of Drumline: it has no src/drumline.")
    return options


def _timed(case: Case, count: int, steps: int, run: Path, checkout: Path) -> tuple[float, float]:
    """Seconds a step, and processor seconds of the training."""
    path = f"{checkout / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    before = _processor_s()
    step_s = measure(case, count, steps, run, {**os.environ, "PYTHONPATH": path})
    return step_s, _processor_s() - before


def _processor_s() -> float:
    """Of all processes that this one started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _row(case: Case, count: int, side: str, timed: tuple[float, float]) -> dict[str, Any]:
    on_cpu = case.on_cpu or not torch.cuda.is_available()
    return {
        "config": case.name,
        "precision": case.config.precision.value,
        "global_batch": case.config.global_batch,
        "device": "CPU" if on_cpu else torch.cuda.get_device_name(),
        "devices": count,
        "side": side,
        "step_ms": round(1e3 * timed[0], 3),
        "cpu_s": round(timed[1], 1),
        "torch": torch.__version__,
    }


def _print(rows: list[dict[str, Any]]) -> None:
    print(title(rows[0]))
    print("devices   before ms (from, to)        now ms (from, to)     faster   cpu s before   now")
    for count in sorted({row["devices"] for row in rows}):
        of = {
            side: [row for row in rows if (row["devices"], row["side"]) == (count, side)]
            for side in ("before", "now")
        }
        shown, steps, cpu = [], {}, {}
        for side, some in of.items():
            times = [row["step_ms"] for row in some]
            steps[side] = statistics.median(times)
            cpu[side] = statistics.median(row["cpu_s"] for row in some)
            shown.append(f"{steps[side]:8.3f} ({min(times):7.3f}, {max(times):7.3f})")
        print(
            f"{count:7}  {'   '.join(shown)}   {steps['before'] / steps['now']:5.2f}x   "
            f"{cpu['before']:12.1f} {cpu['now']:5.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
