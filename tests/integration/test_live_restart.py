"""`drumline serve` as a real process: live devices, a goodbye on SIGTERM, and going on after it and
after kill -9."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from real_commands import command_environment
from websockets.exceptions import ConnectionClosed

from live_servers import PATIENCE_S, Tab
from live_viewer import Viewer


@contextmanager
def serving(home: Path, port: int = 0) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A service with two simulated devices, and its port."""
    settings = {
        "DRUMLINE_HOME": str(home),
        "DRUMLINE_RUN_ROOT": str(home / "runs"),
        "DRUMLINE_SIMULATE": "2xH100",
        "DRUMLINE_SAMPLE_EVERY_S": "0.2",
        "DRUMLINE_PORT": str(port),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "drumline", "serve"],
        env=command_environment(**settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())
        assert found
        yield process, int(found[1])
    finally:
        process.kill()
        process.wait()


def follow(port: int, viewer: Viewer, readings: int) -> Tab:
    """A tab that has gone on where `viewer` was, and seen so many readings of every device."""
    tab = Tab(f"ws://127.0.0.1:{port}/api/v1/live", viewer)
    tab.subscribe("gpus/aggregate", "queue")
    tab.read_until(lambda v: len((v.state.get("gpus/aggregate") or {}).get("gpus", [])) == 2)
    channels = [f"gpu/{uuid}" for uuid in (viewer.state["gpus/aggregate"] or {})["gpus"]]
    tab.subscribe(*channels, since=dict(viewer.seq), epoch=viewer.epoch)
    times: dict[str, set[int]] = {channel: set() for channel in channels}
    while min(map(len, times.values())) < readings:
        for channel, _, state in viewer.read(str(tab.socket.recv(PATIENCE_S))):
            if channel in times and state:
                times[channel].add(state["time_ms"])
    return tab


def test_a_service_that_restarts_and_one_that_is_killed(tmp_path: Path) -> None:
    viewer = Viewer()
    with serving(tmp_path) as (process, port):
        tab = follow(port, viewer, 3)
        first = viewer.epoch
        page = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S).text
        assert page.count("drumline_gpu_temperature_celsius{") == 2
        assert "drumline_sampler_late_ticks_total" in page
        process.send_signal(signal.SIGTERM)
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                tab.socket.recv(PATIENCE_S)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
        assert json.loads(closed.value.rcvd.reason)["retry_after_ms"] >= 500
        assert process.wait(PATIENCE_S) == 0
    with serving(tmp_path, port) as (process, _):
        tab = follow(port, viewer, 2)
        assert viewer.epoch != first
        second = viewer.epoch
        process.kill()
        with pytest.raises(ConnectionClosed) as broken:
            while True:
                tab.socket.recv(PATIENCE_S)
        assert broken.value.rcvd is None
        assert tab.hello["retry_after_ms"] >= 500  # told before, as a killed service says nothing
    with serving(tmp_path, port):
        follow(port, viewer, 2).socket.close()
        assert viewer.epoch not in (first, second)
