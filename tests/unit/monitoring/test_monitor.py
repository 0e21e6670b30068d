"""One host under watch, from its sensors to history, inventory and bus."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hardware.recorded_drivers import RecordedNvml

from drumline.database import now_ms, open_database
from drumline.hardware.providers.nvidia import NvidiaProvider
from drumline.hardware.providers.simulated import SimulatedProvider
from drumline.monitoring.bus import Bus
from drumline.monitoring.history import History
from drumline.monitoring.inventory import Inventory
from drumline.monitoring.monitor import AGGREGATE, Monitor
from drumline.monitoring.readings import Job

LONG_S = 60.0


def test_samples_reach_history_inventory_and_bus(database_url: str) -> None:
    database, bus = open_database(database_url), Bus()
    watching = bus.subscribe([AGGREGATE])
    provider = SimulatedProvider(
        "3xH100:steady+1xL4:lost", clock=iter(range(0, 10**6, 100)).__next__
    )
    held = provider.sample()[1].uuid
    begin_ms = now_ms()
    monitor = Monitor(
        database,
        provider,
        bus,
        every_s=0.05,
        host_id="one",
        job_of=lambda uuid: Job("t-9") if uuid == held else None,
    )
    monitor.start()
    for _ in range(3):
        assert watching.wait(LONG_S)
        ((_, line),) = watching.take()
    monitor.stop()
    assert line["devices"] == 4 and line["lost"] == 1
    assert line["power_w"]["reporting"] == 3
    (host,) = Inventory(database).machines()
    assert host.id == "one" and len(host.machine.devices) == 4
    uuids = [device.uuid for device in host.machine.devices]
    assert {f"gpu/{uuid}" for uuid in uuids} | {AGGREGATE} == set(bus.channels())
    message = bus.latest(f"gpu/{held}")
    assert message is not None and message["job"] == {"id": "t-9", "type": "training"}
    series = History(database).range(uuids, begin_ms - 2000, now_ms() + 2000, 100)
    told = [sum(device.readings) > 0 for device in series.devices]
    assert told == [True, True, True, False]  # the lost one has a gap
    of_job = History(database).range(uuids, begin_ms - 2000, now_ms() + 2000, 100, "t-9")
    assert [sum(device.readings) > 0 for device in of_job.devices] == [False, True, False, False]
    database.close()


def test_instances_of_a_split_device_have_a_history_and_a_channel(sqlite_url: str) -> None:
    database, bus = open_database(sqlite_url), Bus()
    provider = NvidiaProvider(RecordedNvml("mig_a100"), lookup=lambda _: (None, None))
    watching = bus.subscribe([AGGREGATE])
    begin_ms = now_ms()
    monitor = Monitor(database, provider, bus, every_s=0.05)
    monitor.start()
    assert watching.wait(LONG_S)
    monitor.stop()
    (host,) = Inventory(database).machines()
    (device,) = host.machine.devices
    uuids = [device.uuid, *(instance.uuid for instance in device.mig_instances)]
    series = History(database).range(uuids, begin_ms - 2000, now_ms() + 2000, 100)
    for one in series.devices:
        assert any(value is not None for value in one.metrics["memory_used_bytes"].max)
    assert all(value is None for value in series.devices[1].metrics["power_w"].max)
    database.close()


def test_watching_needs_no_torch(tmp_path: Path) -> None:
    script = (
        "import sys, drumline.monitoring.monitor, drumline.database.migrate;"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, timeout=60, cwd=tmp_path)
    assert done.returncode == 0
