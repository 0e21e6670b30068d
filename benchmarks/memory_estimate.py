"""Predicted and measured memory side by side: `python benchmarks/memory_estimate.py --out DIR`.

Every case is predicted in one process without a GPU, and measured in another on one: the real
Session takes five steps, and torch's allocator says what it reserved at most. Cases for several
ranks need as many GPUs. DIR gets memory_estimate.csv, and for each case a JSON file with both
sequences of allocations, to calibrate from.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

from memory_cases import Case, build, cases

LIMIT_S = 150
SHARED_BY = 3
"""Measurements on one GPU at once; what torch reserves does not depend on others."""

ALONE = ("sae topk small fp32", "lm bf16", "lstm fp32")
"""Measured alone, so that the memory outside torch's allocator is theirs."""

MIB = 2**20


def predict(case: Case) -> dict[str, Any]:
    from drumline.bench.memory import SELECTED_AT_MOST
    from drumline.bench.memory_trace import trace_task

    began = time.perf_counter()
    dead = case.options.get("dead", 0.0)
    trace, more = trace_task(*build(case), world_size=case.ranks, selected=dead), None
    if trace.selections and not dead:
        more = trace_task(*build(case), world_size=case.ranks, selected=SELECTED_AT_MOST)
    seconds = time.perf_counter() - began
    traces = [trace.as_dict(), None if more is None else more.as_dict()]
    return {"traces": traces, "seconds": seconds}


def measure(case: Case) -> dict[str, Any]:
    from drumline.bench.memory_measure import measure_task

    return measure_task(*build(case)).as_dict()


def run_alone(case: Case, action: Callable[[Case], dict[str, Any]], path: Path) -> None:
    answer = action(case)
    if os.environ.get("RANK", "0") == "0":
        path.write_text(json.dumps(answer))


def in_process(case: Case, action: str, out: Path, gpus: str) -> dict[str, Any]:
    """One half of a case in its own process; an error is the answer, too."""
    path = out / "parts" / f"{case.name.replace(' ', '-')}.{action}.json"
    launcher = [sys.executable]
    if action == "measure" and case.ranks > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone"]
        launcher += ["--nproc-per-node", str(case.ranks)]
    command = [*launcher, __file__, "--case", case.name, "--action", action, "--out", str(path)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpus, "OMP_NUM_THREADS": "2"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        if done.returncode == 0:
            return json.loads(path.read_text())
        (path.with_suffix(".log")).write_text(done.stdout + done.stderr)
        lines = [line for line in done.stderr.splitlines() if "Error" in line]
        return {"error": (lines or [f"exit code {done.returncode}"])[0].strip()[:200]}
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {LIMIT_S} s"}


def count_gpus() -> int:
    from drumline.hardware import Machine

    return len(Machine.probe().usable)


def run_all(chosen: list[Case], out: Path) -> list[dict[str, Any]]:
    """Predictions on the CPU and measurements on the GPUs at once."""
    gpus = count_gpus()
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 4)) as pool:
        predicted = [pool.submit(in_process, case, "predict", out, "") for case in chosen]
        measured = measure_all(chosen, out, gpus)
        rows = []
        for case, prediction in zip(chosen, predicted, strict=True):
            rows.append(compare(case, prediction.result(), measured[case.name], out))
            print(line(rows[-1]), flush=True)
    return rows


def measure_all(chosen: list[Case], out: Path, gpus: int) -> dict[str, dict[str, Any]]:
    """Cases that need a GPU for themselves, then the rest on one, then pairs of ranks."""
    measured = {
        case.name: {"error": f"needs {case.ranks} GPUs, and there are {gpus}"}
        for case in chosen
        if case.ranks > gpus
    }
    singles = [case for case in chosen if case.ranks == 1 <= gpus]
    alone = [case for case in singles if case.name in ALONE]
    shared = [case for case in singles if case.name not in ALONE]
    for cases_now, slots in ((alone, 1), (shared, SHARED_BY)):
        idle: Queue[int] = Queue()
        for slot in range(slots * gpus):
            idle.put(slot % gpus)

        def on_one(case: Case, idle: Queue[int] = idle) -> dict[str, Any]:
            gpu = idle.get()
            try:
                return in_process(case, "measure", out, str(gpu))
            finally:
                idle.put(gpu)

        with ThreadPoolExecutor(max(1, slots * gpus)) as cards:
            answers = cards.map(on_one, cases_now)
            measured |= {case.name: found for case, found in zip(cases_now, answers, strict=True)}
    for case in shared:
        measured[case.name].pop("outside", None)  # others were on the GPU, too
    several = [case for case in chosen if 1 < case.ranks <= gpus]

    def on_several(case: Case) -> dict[str, Any]:
        return in_process(case, "measure", out, ",".join(map(str, range(case.ranks))))

    with ThreadPoolExecutor(SHARED_BY) as at_once:
        answers = at_once.map(on_several, several)
        measured |= {case.name: found for case, found in zip(several, answers, strict=True)}
    for case in several:
        measured[case.name].pop("outside", None)
    return measured


def compare(
    case: Case, prediction: dict[str, Any], measurement: dict[str, Any], out: Path
) -> dict[str, Any]:
    """One row of the table; both sides' details go into a file of the case's own."""
    from drumline.planning.memory import estimate
    from drumline.planning.memory_trace import MemoryTrace

    row: dict[str, Any] = {"case": case.name, "ranks": case.ranks}
    row["error"] = "; ".join(part["error"] for part in (prediction, measurement) if "error" in part)
    capability = measurement.get("capability", (9, 0))
    if "traces" in prediction:
        trace, more = (part and MemoryTrace.from_dict(part) for part in prediction["traces"])
        guess = estimate(trace, tuple(capability), more=more)
        row |= {"predicted_" + key: getattr(guess, key) for key in PREDICTED}
        row["trace_s"] = round(prediction["seconds"], 2)
    if "reserved_peak" in measurement:
        row |= {key: measurement[key] for key in MEASURED if key in measurement}
        row["torch"] = measurement["versions"]["torch"]
    if "traces" in prediction and "reserved_peak" in measurement:
        for peak in ("reserved_peak", "allocated_peak"):
            row[f"{peak}_error_percent"] = round(
                100 * (row[f"predicted_{peak}"] / measurement[peak] - 1), 2
            )
    details = out / "details" / f"{case.name.replace(' ', '-')}.json"
    details.write_text(json.dumps({"prediction": prediction, "measurement": measurement}))
    return row


PREDICTED = ("reserved_peak", "allocated_peak", "low", "high", "context", "workspace")
MEASURED = ("device", "reserved_peak", "allocated_peak", "outside")
COLUMNS = [
    *("case", "ranks", "device", "torch", "predicted_reserved_peak", "reserved_peak"),
    *("reserved_peak_error_percent", "predicted_allocated_peak", "allocated_peak"),
    *("allocated_peak_error_percent", "predicted_low", "predicted_high", "predicted_workspace"),
    *("predicted_context", "outside", "trace_s", "error"),
]


def line(row: dict[str, Any]) -> str:
    def shown(key: str) -> str:
        return f"{row[key] / MIB:>9,.0f}" if key in row else f"{'-':>9}"

    error = row.get("reserved_peak_error_percent")
    return (
        f"{row['case']:<32}{shown('predicted_reserved_peak')}{shown('reserved_peak')}"
        f"{'-' if error is None else f'{error:+.1f}%':>9}"
        f"{shown('predicted_allocated_peak')}{shown('allocated_peak')}"
        f"{shown('predicted_context')}{shown('outside')}  {row['error']}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("memory-estimate"))
    parser.add_argument("--only", default="", help="cases whose name has one of these, with commas")
    parser.add_argument("--case", default="", help=argparse.SUPPRESS)
    parser.add_argument("--action", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        case = next(case for case in cases() if case.name == options.case)
        run_alone(case, predict if options.action == "predict" else measure, options.out)
        return 0
    for folder in ("parts", "details"):
        (options.out / folder).mkdir(parents=True, exist_ok=True)
    chosen = [
        case for case in cases() if any(part in case.name for part in options.only.split(","))
    ]
    head = ("reserved", "measured", "error", "allocated", "measured", "context", "measured")
    print(f"{'MiB':<32}" + "".join(f"{name:>{9}}" for name in head))
    rows = run_all(chosen, options.out)
    with (options.out / "memory_estimate.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    errors = [abs(row[key]) for row in rows if (key := "reserved_peak_error_percent") in row]
    good = sum(error <= 5 for error in errors)
    print(f"{good} of {len(errors)} measured cases within 5 % of the reserved peak")
    return 0


if __name__ == "__main__":
    sys.exit(main())
