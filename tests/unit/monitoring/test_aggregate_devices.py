"""One line for many devices, of recorded sensor answers."""

from __future__ import annotations

import json

import pytest
from hardware.recorded_drivers import RecordedNvml

from drumline.hardware import Device, Machine
from drumline.hardware.providers.nvidia import NvidiaProvider
from drumline.monitoring.aggregate import aggregate

MIB = 2**20


def machine(name: str, moment: str | None = None) -> Machine:
    nvml = RecordedNvml(name)
    provider = NvidiaProvider(nvml, lookup=lambda _pid: (None, None))
    if moment:
        provider.probe()
        nvml.at(moment)
    return Machine.probe(provider)


def test_server_of_eight() -> None:
    line = aggregate(machine("h100_server"))
    assert (line.devices, line.lost) == (8, 0)
    assert line.memory_total_bytes.value == 8 * 81_559 * MIB
    assert line.memory_used_bytes.value == (7 * 4 + 61_004) * MIB
    assert line.utilization_percent.value == pytest.approx(97 / 8)
    assert line.temperature_c.value == 31.0
    assert line.power_w.value == pytest.approx(7 * 71.342 + 698.73)
    assert line.power_w.words == "8 of 8"


def test_no_driver_is_no_device_and_no_number() -> None:
    line = aggregate(machine("no_driver"))
    assert line.devices == 0
    for field in (line.memory_total_bytes, line.utilization_percent, line.power_w):
        assert (field.value, field.words) == (None, "0 of 0")


def test_a_lost_device_counts_and_reports_nothing() -> None:
    line = aggregate(machine("lost_card", "lost"))
    assert (line.devices, line.lost) == (2, 1)
    assert line.memory_total_bytes.value == 81_920 * MIB  # what is left to use
    assert line.power_w.value == 61.0 and line.power_w.words == "1 of 2"
    assert line.temperature_c.value == 33.0


def test_missing_power_is_null_and_not_zero() -> None:
    line = aggregate(machine("laptop"))
    assert (line.power_w.value, line.power_w.words) == (None, "0 of 1")
    assert line.temperature_c.value == 46.0 and line.utilization_percent.value == 7.0


def test_a_split_device_counts_once() -> None:
    line = aggregate(machine("mig_a100"))
    assert line.devices == 1
    assert line.memory_total_bytes.value == 40_960 * MIB
    assert line.memory_used_bytes.value == 5_307_891_712
    assert line.utilization_percent.words == "0 of 1"


def test_memory_of_a_split_device_that_hides_it_is_that_of_its_instances() -> None:
    def instance(used: int | None) -> Device:
        return Device("MIG", 0, "cuda", memory_used_bytes=used, memory_total_bytes=10)

    split = Device("GPU", 0, "cuda", mig_instances=(instance(3), instance(4)))
    assert aggregate([split]).memory_used_bytes.value == 7
    partly = Device("GPU", 0, "cuda", mig_instances=(instance(3), instance(None)))
    assert aggregate([partly]).memory_used_bytes.value is None
    assert aggregate([partly]).memory_total_bytes.value == 20


def test_seven_of_eight_report_power() -> None:
    devices = [Device(f"GPU-{n}", n, "cuda", power_w=100.0 if n else None) for n in range(8)]
    line = aggregate(devices)
    assert line.power_w.value == 700.0 and line.power_w.words == "7 of 8"
    told = json.loads(json.dumps(line.as_dict()))["power_w"]
    assert told == {"value": 700.0, "reporting": 7, "devices": 8}
