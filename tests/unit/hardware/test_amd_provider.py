"""What AmdProvider makes of recorded amdsmi answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from recorded_drivers import RecordedAmdSmi

from drumline.hardware.machine import Machine
from drumline.hardware.providers.amd import AmdProvider

MIB = 2**20


@pytest.fixture
def smi() -> RecordedAmdSmi:
    return RecordedAmdSmi("mi300x_pair")


@pytest.fixture
def provider(smi: RecordedAmdSmi) -> AmdProvider:
    return AmdProvider(smi, lookup=lambda pid: ("cy", "python3"))


def test_pair_is_numbered_by_pci_address(provider: AmdProvider) -> None:
    gpus = Machine.probe(provider).gpus
    assert [gpu.pci_bus_id for gpu in gpus] == ["0000:05:00.0", "0000:26:00.0"]
    assert {(gpu.kind, gpu.gfx_target, gpu.cores) for gpu in gpus} == {("rocm", "gfx942", 304)}


def test_units_and_missing_values(provider: AmdProvider) -> None:
    gpu = provider.probe().devices[0]
    assert gpu.memory_total_bytes == 196592 * MIB
    assert gpu.memory_free_bytes == (196592 - 283) * MIB
    assert gpu.power_w == 137.0  # "N/A" in the first of the three places it may be
    assert gpu.power_limit_w == 750.0
    assert gpu.temperature_c == 41.0  # the hot spot, as the edge is not supported
    assert (gpu.sm_clock_mhz, gpu.max_sm_clock_mhz) == (132, 2100)
    assert (gpu.memory_clock_mhz, gpu.max_memory_clock_mhz) == (900, 1300)
    assert (gpu.ecc_corrected, gpu.ecc_uncorrected) == (2, 0)
    assert gpu.utilization_percent == 0.0
    assert gpu.throttle_reasons == ("power cap",)
    assert gpu.compute_capability is None and gpu.mig_enabled is None


def test_processes_with_owner(provider: AmdProvider) -> None:
    first, second = provider.probe().devices
    assert first.processes == ()
    assert second.processes is not None
    assert [(p.pid, p.owner, p.memory_bytes) for p in second.processes] == [(5150, "cy", 2**33)]


def test_xgmi_link(provider: AmdProvider) -> None:
    (link,) = provider.probe().links
    assert (link.kind, link.bandwidth_gb_s) == ("xgmi", 64.0)


def test_device_gone_between_samples_is_lost(smi: RecordedAmdSmi, provider: AmdProvider) -> None:
    provider.probe()
    smi.gone.add("0")
    first, second = provider.sample()
    assert not first.lost and first.temperature_c == 41.0
    assert second.lost and second.name == "AMD Instinct MI300X"
    assert second.temperature_c is None


def test_device_gone_between_probes_keeps_its_identity(
    smi: RecordedAmdSmi, provider: AmdProvider
) -> None:
    before = provider.probe().devices
    smi.gone.add("0")
    after = provider.probe().devices
    assert [device.uuid for device in after] == [device.uuid for device in before]
    assert [device.lost for device in after] == [False, True]


def test_machine_without_amd_devices_has_no_problem(tmp_path: Path) -> None:
    found = AmdProvider(kfd=tmp_path / "kfd").probe()
    assert (found.devices, found.problems, found.installed) == ((), (), False)


def test_amd_devices_without_amdsmi_are_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "amdsmi.py").write_text("print('no library')\n{}['libamd_smi.so']\n")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "kfd").touch()
    (problem,) = AmdProvider(kfd=tmp_path / "kfd").probe().problems
    assert "install ROCm's amdsmi" in problem
    assert capsys.readouterr().out == ""
