"""What the sources bring to the hub: the bus of this process, and one look into the database."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from drumline.database import DatabaseError
from drumline.hardware import Machine
from drumline.jobs.newest import newest_metrics
from drumline.jobs.reports import Batch, Value
from drumline.monitoring.bus import Bus
from drumline.monitoring.current import read_current
from drumline.monitoring.history import History
from drumline.monitoring.inventory import Inventory
from drumline.monitoring.readings import Job, readings_of
from drumline.server.live.bus_source import GATHER_S, BusSource
from drumline.server.live.database_source import KEEP_S, DatabaseSource
from drumline.server.live.hub import Client, Hub
from live_viewer import Viewer
from queue_cases import DONE, Service, service_at

NEAR = Machine.probe(simulate="2xH100")
FAR = Machine.probe(simulate="1xA100")
NOW = 1_700_000_000_000


@pytest.fixture
def service(database_url: str) -> Iterator[Service]:
    with service_at(database_url) as made:
        made.clock.now = NOW
        Inventory(made.database).record(NEAR, NOW, "h")
        yield made


class Watching:
    """A hub with one client, and the states it sees."""

    def __init__(self, *channels: str) -> None:
        self.hub = Hub()
        self.viewer = Viewer()
        self.client: Client = self.hub.join(lambda: None)
        for channel in channels:
            self.client.subscribe(channel)

    @property
    def state(self) -> dict[str, Any]:
        while (frame := self.client.take()) is not None:
            self.viewer.read(frame)
        return self.viewer.state


def look(watching: Watching, service: Service, local: BusSource | None = None) -> None:
    source = DatabaseSource(watching.hub, service.database, local, clock=service.clock)
    asyncio.run(source.look())


def started(service: Service, gpus: int = 1) -> tuple[str, str]:
    service.ask(gpus)
    claim = service.leases.claim("h", NEAR)
    assert claim is not None
    return claim.training.id, claim.token


def test_a_training_from_its_first_step_to_its_deletion(service: Service) -> None:
    training_id, token = started(service)
    name = f"training/{training_id}"
    watching = Watching(name, "training/unknown")
    service.outcomes.starting(token, run_dir="/runs/a", process_id=1, process_started=1.0)
    service.outcomes.running(token, world_size=1, steps=8)
    values = (Value("loss", 1, NOW, 2.5), Value("loss", 2, NOW, None), Value("lr", 1, NOW, 0.1))
    service.trainings.reports.write(token, Batch(values, step=2, steps=8))
    look(watching, service)
    state = watching.state[name]
    assert (state["state"], state["step"], state["steps"]) == ("running", 2, 8)
    assert state["metrics"] == {
        "loss": {"step": 2, "value": None},
        "lr": {"step": 1, "value": 0.1},
    }
    assert state["gpu_ids"] == [next(iter(service.leases.held()))]
    assert state["started"] == "2023-11-14T22:13:20.001Z"
    assert watching.state["training/unknown"] is None
    service.outcomes.finish(token, DONE)
    look(watching, service)
    assert watching.state[name]["state"] == "succeeded"
    assert watching.state[name]["gpu_ids"] == []
    service.trainings.delete(training_id)
    look(watching, service)
    assert watching.state[name] is None


def test_only_what_is_new_is_sent(service: Service) -> None:
    training_id, token = started(service)
    watching = Watching(f"training/{training_id}")
    look(watching, service)
    watching.client.take()
    service.trainings.reports.write(token, Batch((Value("loss", 1, NOW, 2.0),), step=1))
    look(watching, service)
    (delta,) = json.loads(watching.client.take() or "[]")
    assert set(delta["set"]) <= {"metrics", "step", "progress"}
    look(watching, service)
    assert watching.client.take() is None


def test_the_queue_in_its_order(service: Service) -> None:
    running, _ = started(service, 2)
    low, high = service.ask(1), service.ask(1, priority=5)
    watching = Watching("queue")
    look(watching, service)
    queue = watching.state["queue"]
    assert [(entry["position"], entry["id"]) for entry in queue["waiting"]] == [(1, high), (2, low)]
    assert [entry["id"] for entry in queue["active"]] == [running]
    assert len(queue["active"][0]["gpu_ids"]) == 2
    assert {state: count for state, count in queue["counts"].items() if count} == {
        "queued": 2,
        "leased": 1,
    }
    assert queue["counts"]["failed"] == 0


def test_devices_of_another_host_come_from_the_database(service: Service) -> None:
    inventory, history = Inventory(service.database), History(service.database)
    inventory.record(FAR, NOW, "far")
    device = replace(FAR.devices[0], power_w=None, temperature_c=61.0)
    history.write(readings_of([device], NOW - 3000))
    history.write(
        readings_of([replace(device, temperature_c=62.0)], NOW - 1000, lambda _: Job("7"))
    )
    channel = f"gpu/{device.uuid}"
    watching = Watching(channel, "gpus/aggregate", "gpu/none")
    look(watching, service)
    state = watching.state[channel]
    assert (state["temperature_c"], state["power_w"]) == (62, None)
    assert state["job"] == {"id": "7", "type": "training"}
    assert state["time_ms"] == NOW - 1000
    assert watching.state["gpu/none"] is None
    whole = watching.state["gpus/aggregate"]
    assert whole["devices"] == 3
    assert whole["power_w"]["reporting"] == 2
    assert whole["gpus"] == sorted([device.uuid, *(near.uuid for near in NEAR.devices)])


def test_a_host_that_has_gone_silent_says_nothing_and_is_not_lost(service: Service) -> None:
    current = read_current(service.database, NOW + 31_000)
    assert {reading.temperature_c for reading in current.readings} == {None}
    assert [reading.lost for reading in current.readings] == [False, False]
    assert all("31 s" in str(reading.problem) for reading in current.readings)
    assert [device.memory_used_bytes for device in current.devices] == [None, None]
    alive = read_current(service.database, NOW + 29_000)
    assert all(reading.problem is None for reading in alive.readings)


def test_the_bus_reaches_the_hub_in_one_frame_and_the_database_is_not_asked(
    service: Service,
) -> None:
    uuids = [device.uuid for device in NEAR.devices]
    watching = Watching("gpus/aggregate", *(f"gpu/{uuid}" for uuid in uuids))
    bus = Bus()

    async def run() -> list[str]:
        woken = asyncio.Event()
        watching.client = watching.hub.join(woken.set)
        for channel in ("gpus/aggregate", f"gpu/{uuids[0]}", f"gpu/{uuids[1]}"):
            watching.client.subscribe(channel)
        watching.client.take()
        woken.clear()
        source = BusSource(watching.hub, bus)
        source.start()

        def sample() -> None:
            for reading in readings_of(NEAR.devices, NOW):
                bus.publish(f"gpu/{reading.device_uuid}", reading.as_dict())
            bus.publish("gpus/aggregate", {"devices": 2})

        thread = threading.Thread(target=sample)
        thread.start()
        thread.join()
        await asyncio.wait_for(woken.wait(), 20)
        frames = [watching.client.take() or ""]
        database = DatabaseSource(watching.hub, service.database, source, clock=service.clock)
        await database.look()
        assert watching.client.take() is None
        Inventory(service.database).record(FAR, NOW, "far")
        await database.look()
        frames.append(watching.client.take() or "")
        bus.publish("gpus/aggregate", {"devices": 99})
        await asyncio.sleep(3 * GATHER_S)
        assert watching.client.take() is None
        source.pass_aggregate(True)
        assert '"devices":99' in (watching.client.take() or "")
        source.stop()
        return frames

    first, second = asyncio.run(run())
    messages = json.loads(first)
    assert [m["channel"] for m in messages] == [*(f"gpu/{u}" for u in uuids), "gpus/aggregate"]
    assert messages[-1]["set"] == {"gpus": sorted(uuids), "devices": 2}
    (whole,) = json.loads(second)
    assert whole["set"]["devices"] == 3


def test_channels_are_read_on_for_a_while_after_their_last_listener(service: Service) -> None:
    watching = Watching("queue")
    source = DatabaseSource(watching.hub, service.database, clock=service.clock)
    asyncio.run(source.look())
    seq = watching.hub.channel("queue")
    assert seq is not None
    before = seq.seq
    watching.client.unsubscribe("queue")
    service.ask(1)
    service.clock.now += 1000
    asyncio.run(source.look())
    watching.client.subscribe("queue", since=before, epoch=watching.hub.epoch)
    kinds = [message["type"] for message in json.loads(watching.client.take() or "[]")]
    assert kinds == ["resumed", "delta"]
    watching.client.unsubscribe("queue")
    service.clock.now += round(KEEP_S * 1000) + 1
    asyncio.run(source.look())
    assert watching.hub.known("") == []


def test_a_database_that_fails_makes_the_feed_stand_still_and_is_told_once(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watching = Watching("queue")
    source = DatabaseSource(watching.hub, service.database, clock=service.clock)
    with monkeypatch.context() as broken:

        def fail() -> None:
            raise DatabaseError("The database does not answer.")

        broken.setattr(service.database, "reading", fail)
        asyncio.run(source.look())
        asyncio.run(source.look())
    assert caplog.text.count("stand still") == 1
    asyncio.run(source.look())
    assert watching.state["queue"]["waiting"] == []


def test_a_look_that_fails_is_not_the_last(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    watching, asked = Watching("queue"), []

    def why() -> dict[str, Any]:
        asked.append(1)
        if len(asked) == 1:
            raise ValueError("an inventory that cannot be read")
        return {}

    async def run() -> None:
        arrived = asyncio.Event()
        watching.client = watching.hub.join(arrived.set)
        watching.client.subscribe("queue")
        assert watching.state == {"queue": None}
        arrived.clear()
        source = DatabaseSource(
            watching.hub, service.database, why=why, every_s=0.01, clock=service.clock
        )
        source.start()
        await asyncio.wait_for(arrived.wait(), 20)
        await source.stop()

    asyncio.run(run())
    assert watching.state["queue"]["waiting"] == []
    assert "cannot be read" in caplog.text


def test_newest_metrics_equal_the_last_of_each_name(service: Service) -> None:
    first, token = started(service)
    second, other = started(service)
    values = [Value(name, step, NOW, step / 7) for name in "abc" for step in range(1, 30)]
    service.trainings.reports.write(token, Batch(tuple(values)))
    service.trainings.reports.write(other, Batch((Value("b", 3, NOW, None),)))
    with service.database.reading() as connection:
        found = newest_metrics(connection, [first, second, "unknown"])
    assert found == {
        first: {name: Value(name, 29, NOW, 29 / 7) for name in "abc"},
        second: {"b": Value("b", 3, NOW, None)},
    }
