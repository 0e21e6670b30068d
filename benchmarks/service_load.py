"""How many requests a second does the service answer, and how late?

`drumline serve` as a process of its own, with eight simulated devices sampled at 1 Hz, and in its
database 1,000 trainings, of which 200 wait and one has 100,000 values of metrics. For each route a
number of clients ask one after another as fast as they are answered, over connections kept open.
Prints for each route the requests a second and p50, p95 and the longest, and what the service took
of one core; with --csv lines are appended to a file. Clients and service share the machine.

    python benchmarks/service_load.py --clients 8 --seconds 10
"""

from __future__ import annotations

import argparse
import csv
import datetime
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import httpx
import psutil

from drumline.database import Database, now_ms, open_database
from drumline.database.migrate import upgrade
from drumline.database.tables import training_metrics, trainings
from drumline.jobs.states import State
from drumline.jobs.training import Request
from drumline.jobs.trainings import Trainings

CONFIG = {
    "task": {"name": "clstm_ppo", "environment": {"name": "cartpole_memory"}, "total_steps": 8192},
    "global_batch": 256,
}
COLUMNS = ["route", "clients", "requests_per_s", "p50_ms", "p95_ms", "longest_ms", "cores"]
TRAININGS, WAITING, STEPS, METRICS = 1_000, 200, 20_000, 5


def fill(database: Database) -> str:
    """Trainings that have ended or wait for a host that is not there; the one with metrics."""
    made = Trainings(database)
    ids = [
        made.create(Request(CONFIG, owner=f"user{n % 7}", name=f"n{n}", host="elsewhere")).id
        for n in range(TRAININGS)
    ]
    ended = {"state": State.SUCCEEDED.value, "ended_ms": now_ms(), "step": 32, "steps": 32}
    rows = [
        {"training_id": ids[0], "name": f"m{m}", "step": s, "time_ms": s, "value": s / STEPS}
        for m in range(METRICS)
        for s in range(STEPS)
    ]
    with database.writing() as connection:
        gone = trainings.c.id.in_(ids[: TRAININGS - WAITING])
        connection.execute(trainings.update().where(gone).values(**ended))
        connection.execute(training_metrics.insert(), rows)
    return ids[0]


def routes(training: str) -> dict[str, str]:
    return {
        "one training": f"/trainings/{training}",
        "50 trainings": "/trainings?limit=50",
        "queue of 200": "/queue",
        "metrics, 500 points each": f"/trainings/{training}/metrics?points=500",
        "devices": "/system/gpus",
        "last readings": "/system/metrics/current",
        "an hour, together": "/system/metrics?points=500",
        "an hour, each device": "/system/metrics?points=500&view=per_gpu",
        "health": "/system/health",
    }


@contextmanager
def service(home: Path) -> Iterator[tuple[psutil.Process, str]]:
    environment = {
        **os.environ,
        "DRUMLINE_HOME": str(home),
        "DRUMLINE_RUN_ROOT": str(home / "runs"),
        "DRUMLINE_SIMULATE": "8xH100:mixed",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "drumline", "serve", "--port", "0"]
    with (home / "log").open("w") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found, (home / "log").read_text()
        yield psutil.Process(process.pid), f"{found[0]}/api/v1"
    finally:
        process.terminate()
        process.wait()


def ask(base: str, path: str, until_s: float, took_ms: list[float]) -> None:
    """One client."""
    with httpx.Client(base_url=base, timeout=60) as client:
        while (begun := time.perf_counter()) < until_s:
            client.get(path).raise_for_status()
            took_ms.append((time.perf_counter() - begun) * 1000)


def measure(
    process: psutil.Process, base: str, path: str, clients: int, seconds: float
) -> tuple[list[float], float, float]:
    """Times of all answers in ms, the seconds it took, and the service's share of one core."""
    ask(base, path, time.perf_counter() + 0.5, [])
    took_ms: list[list[float]] = [[] for _ in range(clients)]
    before, begun = sum(process.cpu_times()[:2]), time.perf_counter()
    threads = [
        threading.Thread(target=ask, args=(base, path, begun + seconds, mine)) for mine in took_ms
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    passed = time.perf_counter() - begun
    core = (sum(process.cpu_times()[:2]) - before) / passed
    return sorted(one for mine in took_ms for one in mine), passed, core


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--note", default="", help="what else ran on the machine")
    given = parser.parse_args()
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        database = open_database(f"sqlite:///{folder}/drumline.db")
        upgrade(database)
        training = fill(database)
        database.close()
        with service(Path(folder)) as (process, base):
            time.sleep(5)  # so that there is some history
            for name, path in routes(training).items():
                took, passed, core = measure(process, base, path, given.clients, given.seconds)
                p50, p95 = statistics.median(took), took[int(0.95 * (len(took) - 1))]
                rate = len(took) / passed
                print(
                    f"{name:26} {rate:7.1f}/s   p50 {p50:7.1f} ms   p95 {p95:7.1f} ms   "
                    f"longest {took[-1]:7.1f} ms   {core:4.0%} of a core"
                )
                figures = (round(one, 1) for one in (rate, p50, p95, took[-1]))
                lines.append([name, given.clients, *figures, round(core, 2)])
    if given.csv is not None:
        write(given.csv, lines, given.note)


def write(path: Path, lines: list[list[object]], note: str) -> None:
    where = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        "python": platform.python_version(),
        "fastapi": version("fastapi"),
        "uvicorn": version("uvicorn"),
        "note": note,
    }
    fresh = not path.exists()
    with path.open("a", newline="") as file:
        table = csv.writer(file)
        if fresh:
            table.writerow([*COLUMNS, *where])
        table.writerows([*line, *where.values()] for line in lines)


if __name__ == "__main__":
    main()
