"""Hosts and devices as they were last seen, over lost devices, broken drivers and restarts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hardware.recorded_drivers import RecordedNvml

from drumline.database import Database, open_database
from drumline.hardware import Machine
from drumline.hardware.providers.nvidia import NvidiaProvider
from drumline.hardware.providers.simulated import SimulatedProvider
from drumline.monitoring.inventory import FORGOTTEN_AFTER_MS, MISSING, HostView, Inventory

NOW = 1_700_000_000_000
A, B = (f"GPU-{c * 8}-0000-4000-8000-00000000000{n}" for n, c in ((1, "a"), (2, "b")))


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    opened = open_database(database_url)
    yield opened
    opened.close()


def provider_of(nvml: RecordedNvml) -> NvidiaProvider:
    return NvidiaProvider(nvml, lookup=lambda _pid: (None, None))


def record(
    inventory: Inventory, name: str, now_ms: int = NOW, moment: str | None = None
) -> Machine:
    nvml = RecordedNvml(name)
    if moment:
        nvml.at(moment)
    machine = Machine.probe(provider_of(nvml))
    inventory.record(machine, now_ms, "one")
    return machine


def only(inventory: Inventory) -> HostView:
    (host,) = inventory.machines()
    return host


@pytest.mark.parametrize("name", ["h100_server", "mig_a100", "laptop", "unlike_cards"])
def test_what_was_recorded_comes_back_whole(database: Database, name: str) -> None:
    inventory = Inventory(database)
    machine = record(inventory, name)
    host = only(inventory)
    assert host.machine == machine
    assert (host.id, host.name, host.problem) == ("one", machine.host.hostname, None)
    assert (host.first_seen_ms, host.last_seen_ms) == (NOW, NOW)


def test_a_host_is_its_name_where_nothing_else_is_said(database: Database) -> None:
    inventory = Inventory(database)
    inventory.record(Machine.probe(simulate="2xL4"), NOW)
    host = only(inventory)
    assert host.id == host.name == host.machine.host.hostname
    assert host.problem is None  # to be simulated is none


def test_processes_without_an_owner_stay_so(database: Database) -> None:
    inventory = Inventory(database)
    record(inventory, "h100_server")
    processes = only(inventory).machine.devices[2].processes
    assert processes is not None
    assert [(one.pid, one.owner, one.memory_bytes) for one in processes] == [
        (99, None, None),
        (4242, None, 60_990 * 2**20),
    ]


def test_no_driver_is_a_host_with_a_reason(database: Database) -> None:
    inventory = Inventory(database)
    record(inventory, "no_driver")
    host = only(inventory)
    assert host.machine.devices == ()
    assert host.problem is not None and "No NVIDIA driver is installed" in host.problem


def test_a_lost_device_stays_known_and_comes_back(database: Database) -> None:
    inventory = Inventory(database)
    nvml = RecordedNvml("lost_card")
    provider = provider_of(nvml)
    for later, change, lost in ((0, None, False), (1, "lost", True), (2, "back", False)):
        if change == "back":
            nvml.change("1", {})
        elif change:
            nvml.at(change)
        inventory.record(Machine.probe(provider), NOW + later, "one")
        host = only(inventory)
        assert [device.lost for device in host.machine.devices] == [False, lost]
        assert (host.problem is not None) == lost
    assert dict(host.device_seen_ms) == {A: NOW + 2, B: NOW + 2}


def test_when_a_lost_device_was_last_there(database: Database) -> None:
    inventory = Inventory(database)
    nvml = RecordedNvml("lost_card")
    provider = provider_of(nvml)
    inventory.record(Machine.probe(provider), NOW, "one")
    nvml.at("lost")
    inventory.record(Machine.probe(provider), NOW + 60_000, "one")
    assert dict(only(inventory).device_seen_ms) == {A: NOW + 60_000, B: NOW}


@pytest.mark.parametrize("broken", ["mismatch", "no_driver"])
def test_devices_are_lost_with_the_driver_also_after_a_restart_and_come_back(
    database: Database, broken: str
) -> None:
    """A new process asks a driver that does not answer: it knows no device, the database does."""
    inventory = Inventory(database)
    whole = record(inventory, "lost_card")
    record(inventory, broken, NOW + 1)
    host = only(inventory)
    assert host.problem is not None
    assert [(d.uuid, d.lost, d.problem, d.name) for d in host.machine.devices] == [
        (device.uuid, True, MISSING, device.name) for device in whole.devices
    ]
    record(inventory, "lost_card", NOW + 2)
    host = only(inventory)
    assert (host.problem, host.machine.devices) == (None, whole.devices)


def test_a_device_taken_out_is_forgotten_after_a_month(database: Database) -> None:
    inventory = Inventory(database)
    machine = record(inventory, "lost_card")
    fewer = replace(machine, devices=machine.devices[:1])
    inventory.record(fewer, NOW + FORGOTTEN_AFTER_MS - 1, "one")
    assert [device.lost for device in only(inventory).machine.devices] == [False, True]
    inventory.record(fewer, NOW + FORGOTTEN_AFTER_MS, "one")
    assert [device.uuid for device in only(inventory).machine.devices] == [A]


def test_instances_taken_apart_on_purpose_are_not_lost(database: Database) -> None:
    inventory = Inventory(database)
    machine = record(inventory, "mig_a100")
    assert len(only(inventory).device_seen_ms) == 4
    (device,) = machine.devices
    whole = replace(machine, devices=(replace(device, mig_enabled=False, mig_instances=()),))
    inventory.record(whole, NOW + 1, "one")
    assert only(inventory).machine == whole


def test_simulated_devices_go_with_their_setting(database: Database) -> None:
    inventory = Inventory(database)
    inventory.record(Machine.probe(SimulatedProvider("8xH100")), NOW, "one")
    inventory.record(Machine.probe(SimulatedProvider("1xL4")), NOW + 1, "one")
    assert len(only(inventory).machine.devices) == 1


def test_hosts_come_by_name_each_with_its_own(database: Database) -> None:
    inventory = Inventory(database)
    for name, simulate in (("b", "2xH100"), ("a", "1xL4")):
        machine = Machine.probe(simulate=simulate)
        named = replace(machine, host=replace(machine.host, hostname=name))
        inventory.record(named, NOW)
    found = [(host.name, len(host.machine.devices)) for host in inventory.machines()]
    assert found == [("a", 1), ("b", 2)]
    assert inventory.machines()[0].age_s(NOW + 1500) == 1.5


def test_a_device_keeps_its_number_and_a_new_one_has_the_next(database: Database) -> None:
    inventory = Inventory(database)
    for later in range(20):
        record(inventory, "lost_card", NOW + later)
    record(inventory, "laptop", NOW + 20)
    with database.reading() as connection:
        query = "SELECT id, first_seen_ms, last_seen_ms FROM devices ORDER BY id"
        found = [tuple(row) for row in connection.exec_driver_sql(query)]
    assert found == [(1, NOW, NOW + 19), (2, NOW, NOW + 19), (3, NOW + 20, NOW + 20)]
