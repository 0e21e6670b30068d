"""How late do messages reach 1,000 clients of the live feed?

A real uvicorn server publishes the readings of eight devices and their aggregate at 1 Hz; a second
process holds 1,000 WebSocket connections that follow all nine channels. Every reading carries the
monotonic time at which it was published, which both processes share; a delivery is the time until a
client has the text in hand. Prints p50, p95 and the largest, messages a second, and how much of one
core the server took; with --csv a line is appended to a file.

    python benchmarks/live_fanout.py --clients 1000 --seconds 30
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import datetime
import json
import multiprocessing
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

STAMP = re.compile(r'"published_ns":(\d+)')
CHANNELS = ["gpus/aggregate", *(f"gpu/GPU-{index}" for index in range(8))]


def raise_file_limit(files: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < files:
        raise SystemExit(f"{files} open files are needed, and {hard} allowed: ulimit -Hn.")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, files), hard))


def reading(index: int, tick: int) -> dict[str, Any]:
    """A device's reading as the sampler gives it; half of the fields change each second."""
    return {
        "uuid": f"GPU-{index}",
        "name": "NVIDIA H100 80GB HBM3",
        "index": index,
        "memory_total_bytes": 85_520_809_984,
        "memory_used_bytes": 40_000_000_000 + tick * 4096,
        "utilization_percent": tick % 100,
        "temperature_c": 40 + tick % 20,
        "power_w": 300.5 + tick % 50,
        "power_limit_w": 700.0,
        "sm_clock_mhz": 1980 - tick % 5,
        "memory_clock_mhz": 2619,
        "throttle_reasons": [],
        "ecc_uncorrected": 0,
        "lost": False,
        "problem": None,
    }


async def publish(feed: Any, period_s: float) -> None:
    tick, due = 0, time.monotonic()
    while True:
        due += period_s
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        tick += 1
        readings = [reading(index, tick) for index in range(8)]
        aggregate = {"devices": 8, "power_w": sum(one["power_w"] for one in readings)}
        for name, state in zip(CHANNELS, [aggregate, *readings], strict=True):
            feed.hub.publish(name, {**state, "published_ns": time.monotonic_ns()})


def serve(port_pipe: Any, files: int, period_s: float) -> None:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.routing import WebSocketRoute

    from drumline.server.live.feed import UVICORN_OPTIONS, Feed
    from drumline.server.live.serving import LiveServer

    raise_file_limit(files)
    feed = Feed()
    application = Starlette(routes=[WebSocketRoute("/api/v1/live", feed.serve)])
    config = uvicorn.Config(application, port=0, log_level="error", **UVICORN_OPTIONS)
    server = LiveServer(config, feed)

    async def run() -> None:
        serving = asyncio.ensure_future(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        port_pipe.send(server.servers[0].sockets[0].getsockname()[1])
        publishing = asyncio.ensure_future(publish(feed, period_s))
        await serving
        publishing.cancel()

    asyncio.run(run())


class Tally:
    """Delivery times, counted only while `counting`."""

    def __init__(self) -> None:
        self.counting = False
        self.times_ms: list[float] = []
        self.frames = 0
        self.server_core_percent = 0.0


async def follow(url: str, tally: Tally, ready: asyncio.Semaphore) -> None:
    from websockets.asyncio.client import connect

    async with connect(url, compression=None, open_timeout=60, ping_interval=None) as socket:
        await socket.recv()
        await socket.send(json.dumps({"type": "subscribe", "channels": CHANNELS}))
        await socket.recv()
        ready.release()
        async for frame in socket:
            now = time.monotonic_ns()
            if tally.counting:
                tally.frames += 1
                tally.times_ms.extend(
                    (now - int(stamp)) / 1e6 for stamp in STAMP.findall(str(frame))
                )


async def measure(url: str, clients: int, seconds: float, server: psutil.Process) -> Tally:
    tally, ready = Tally(), asyncio.Semaphore(0)
    following = [asyncio.ensure_future(follow(url, tally, ready)) for _ in range(clients)]
    for _ in range(clients):
        await ready.acquire()
    await asyncio.sleep(2)
    before = sum(server.cpu_times()[:2])
    tally.counting = True
    await asyncio.sleep(seconds)
    tally.counting = False
    tally.server_core_percent = 100 * (sum(server.cpu_times()[:2]) - before) / seconds
    for one in following:
        one.cancel()
    await asyncio.gather(*following, return_exceptions=True)
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--period", type=float, default=1.0, help="seconds between readings")
    parser.add_argument("--csv", type=Path, help="append a line to this file")
    parser.add_argument("--remark", default="", help="what else ran, for the file")
    arguments = parser.parse_args()
    files = arguments.clients + 200
    raise_file_limit(files)
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(
        target=serve, args=(theirs, files, arguments.period)
    )
    server.start()
    try:
        url = f"ws://127.0.0.1:{ours.recv()}/api/v1/live"
        load = os.getloadavg()[0]
        tally = asyncio.run(
            measure(url, arguments.clients, arguments.seconds, psutil.Process(server.pid))
        )
    finally:
        server.terminate()
        server.join()
    report(arguments, tally, load)


def report(arguments: argparse.Namespace, tally: Tally, load: float) -> None:
    cuts = statistics.quantiles(tally.times_ms, n=100)
    row = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        "python": platform.python_version(),
        "uvicorn": version("uvicorn"),
        "websockets": version("websockets"),
        "command": " ".join(["benchmarks/live_fanout.py", *clean(sys.argv[1:])]),
        "clients": arguments.clients,
        "channels": len(CHANNELS),
        "messages": len(tally.times_ms),
        "messages_per_s": round(len(tally.times_ms) / arguments.seconds),
        "frames_per_s": round(tally.frames / arguments.seconds),
        "p50_ms": round(cuts[49], 1),
        "p95_ms": round(cuts[94], 1),
        "max_ms": round(max(tally.times_ms), 1),
        "server_core_percent": round(tally.server_core_percent, 1),
        "load_before": round(load, 2),
        "remark": arguments.remark,
    }
    for name, value in row.items():
        print(f"{name:>19}  {value}")
    if arguments.csv:
        new = not arguments.csv.exists()
        with arguments.csv.open("a", newline="") as file:
            writer = csv.DictWriter(file, list(row))
            if new:
                writer.writeheader()
            writer.writerow(row)


def commit() -> str:
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()


def clean(words: list[str]) -> list[str]:
    """The command without what only says where to write."""
    kept, skip = [], False
    for word in words:
        if skip or word in ("--csv", "--remark"):
            skip = not skip
            continue
        kept.append(word)
    return kept


if __name__ == "__main__":
    main()
