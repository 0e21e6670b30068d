"""The machine as a whole: host facts, several drivers together, JSON, and no torch."""

from __future__ import annotations

import getpass
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_drivers import RecordedAmdSmi, RecordedNvml

from drumline.hardware.cpu import probe_host
from drumline.hardware.device import Device, in_pci_order, plain_pci_bus_id
from drumline.hardware.link import nvlink_bandwidth_gb_s, pcie_bandwidth_gb_s
from drumline.hardware.machine import Machine
from drumline.hardware.processes import look_up
from drumline.hardware.providers import SystemProvider
from drumline.hardware.providers.amd import AmdProvider
from drumline.hardware.providers.nvidia import NvidiaProvider


def test_host_facts_agree_with_the_system(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: AMD EPYC 9654 96-Core Processor\n")
    host = probe_host(cpuinfo=cpuinfo)
    assert host.cpu_model == "AMD EPYC 9654 96-Core Processor"
    assert host.hostname == os.uname().nodename
    assert host.memory_total_bytes == psutil.virtual_memory().total
    assert host.cpu_logical == os.cpu_count()
    assert host.cpu_usable == len(os.sched_getaffinity(0))


def test_limits_are_numbers_or_unlimited() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        assert probe_host().limit_open_files == min(soft, 512)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    expected = "unlimited" if locked == resource.RLIM_INFINITY else locked
    assert probe_host().limit_locked_memory_bytes == expected


def test_missing_shared_memory_is_none_and_told(tmp_path: Path) -> None:
    host = probe_host(shm=tmp_path / "shm")
    assert host.shm_total_bytes is None and host.shm_free_bytes is None
    assert "is not there" in host.problems[0]


def test_shared_memory_size_is_that_of_its_file_system(tmp_path: Path) -> None:
    status = os.statvfs(tmp_path)
    assert probe_host(shm=tmp_path).shm_total_bytes == status.f_blocks * status.f_frsize


def test_owner_of_this_process() -> None:
    owner, name = look_up(os.getpid())
    assert owner == getpass.getuser()
    assert name


def test_owner_of_no_process_is_unknown() -> None:
    assert look_up(2**31 - 2) == (None, None)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 65535), st.integers(0, 255)), unique=True))
def test_pci_order_is_numeric_whatever_the_order_found(addresses: list[tuple[int, int]]) -> None:
    devices = [
        Device(f"GPU-{n}", n, "cuda", pci_bus_id=f"{domain:04x}:{bus:02x}:00.0")
        for n, (domain, bus) in enumerate(addresses)
    ]
    ordered = in_pci_order(devices)
    assert [device.pci_bus_id for device in ordered] == [
        f"{domain:04x}:{bus:02x}:00.0" for domain, bus in sorted(addresses)
    ]
    assert [device.index for device in ordered] == list(range(len(addresses)))


@pytest.mark.parametrize(
    ("nvml", "kernel"),
    [
        ("00000000:1B:00.0", "0000:1b:00.0"),
        ("00010000:C3:00.0", "10000:c3:00.0"),
        ("0000:05:00.0", "0000:05:00.0"),
    ],
)
def test_pci_addresses_are_written_as_the_kernel_does(nvml: str, kernel: str) -> None:
    assert plain_pci_bus_id(nvml) == kernel


@pytest.mark.parametrize(
    ("generation", "width", "gb_s"), [(3, 16, 15.76), (4, 16, 31.504), (5, 16, 63.008)]
)
def test_pcie_bandwidth_is_gigatransfers_less_line_coding(
    generation: int, width: int, gb_s: float
) -> None:
    transfers = {3: 8, 4: 16, 5: 32}[generation]
    assert pcie_bandwidth_gb_s(generation, width) == pytest.approx(
        transfers * 128 / 130 / 8 * width, rel=1e-3
    )
    assert pcie_bandwidth_gb_s(generation, width) == gb_s


def test_nvlink_bandwidth_takes_the_smaller_of_nominal_and_reported() -> None:
    assert nvlink_bandwidth_gb_s(4, 18, 26562) == 450.0
    assert nvlink_bandwidth_gb_s(3, 4, 14062) == pytest.approx(56.248)
    assert nvlink_bandwidth_gb_s(None, 2, 25000) == 50.0
    assert nvlink_bandwidth_gb_s(None, 2, None) is None


def test_both_makers_together_are_numbered_as_one() -> None:
    provider = SystemProvider(
        [NvidiaProvider(RecordedNvml("lost_card")), AmdProvider(RecordedAmdSmi("mi300x_pair"))]
    )
    machine = Machine.probe(provider)
    assert [(gpu.index, gpu.kind) for gpu in machine.gpus] == [
        (0, "rocm"),
        (1, "cuda"),
        (2, "cuda"),
        (3, "rocm"),
    ]
    assert [gpu.uuid for gpu in provider.sample()] == [gpu.uuid for gpu in machine.gpus]


def test_missing_nvidia_driver_is_no_problem_beside_amd_devices() -> None:
    provider = SystemProvider(
        [NvidiaProvider(RecordedNvml("no_driver")), AmdProvider(RecordedAmdSmi("mi300x_pair"))]
    )
    assert Machine.probe(provider).problems == ()


def test_broken_nvidia_driver_is_a_problem_beside_amd_devices() -> None:
    provider = SystemProvider(
        [NvidiaProvider(RecordedNvml("mismatch")), AmdProvider(RecordedAmdSmi("mi300x_pair"))]
    )
    assert len(Machine.probe(provider).problems) == 1


@pytest.mark.parametrize("name", ["h100_server", "mig_a100", "unlike_cards", "mismatch"])
def test_machine_is_json(name: str) -> None:
    machine = Machine.probe(NvidiaProvider(RecordedNvml(name)))
    text = json.dumps(machine.as_dict(), allow_nan=False)
    assert len(json.loads(text)["devices"]) == len(machine.gpus)


def test_command_prints_json_and_loads_no_torch() -> None:
    script = (
        "import sys; from drumline.hardware.__main__ import main;"
        "code = main(['2xL4']); assert 'torch' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert [gpu["name"] for gpu in json.loads(done.stdout)["devices"]] == [
        "NVIDIA L4 (simulated)"
    ] * 2


def test_command_with_a_bad_setting_ends_with_two() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "drumline.hardware", "2xABACUS"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert "unknown card: ABACUS" in done.stderr
