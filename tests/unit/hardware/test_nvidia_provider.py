"""What NvidiaProvider makes of recorded NVML answers."""

from __future__ import annotations

from pathlib import Path

import pynvml
import pytest
from recorded_drivers import RecordedNvml

from drumline.hardware.machine import Machine
from drumline.hardware.providers.nvidia import NvidiaProvider

MIB = 2**20
USERS = {4242: ("ana", "python3"), 777: ("ben", "train")}


def provider_of(nvml: RecordedNvml, sysfs: Path = Path("/nowhere")) -> NvidiaProvider:
    return NvidiaProvider(nvml, sysfs=sysfs, lookup=lambda pid: USERS.get(pid, (None, None)))


def probe(name: str, **options: Path) -> Machine:
    return Machine.probe(provider_of(RecordedNvml(name), **options))


def test_server_has_eight_devices_numbered_by_pci_address() -> None:
    machine = probe("h100_server")
    assert [gpu.pci_bus_id for gpu in machine.gpus] == [
        f"0000:{bus}:00.0" for bus in ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
    ]
    assert [gpu.index for gpu in machine.gpus] == list(range(8))
    assert machine.problems == ()


def test_versions_of_driver_and_cuda() -> None:
    host = probe("h100_server").host
    assert (host.driver_version, host.cuda_driver_version) == ("550.54.15", "12.4")


def test_sensors_in_our_units() -> None:
    gpu = probe("h100_server").gpus[2]
    assert gpu.name == "NVIDIA H100 80GB HBM3"
    assert gpu.compute_capability == (9, 0)
    assert gpu.memory_total_bytes == 81559 * MIB
    assert gpu.memory_used_bytes == 61004 * MIB
    assert gpu.memory_free_bytes == 20008 * MIB
    assert gpu.utilization_percent == 97.0
    assert gpu.power_w == pytest.approx(698.73)
    assert gpu.power_limit_w == 700.0
    assert (gpu.sm_clock_mhz, gpu.max_sm_clock_mhz) == (1665, 1980)
    assert (gpu.memory_clock_mhz, gpu.max_memory_clock_mhz) == (2619, 2619)
    assert (gpu.ecc_corrected, gpu.ecc_uncorrected) == (3, 0)
    assert (gpu.pcie_generation, gpu.pcie_width) == (5, 16)
    assert gpu.mig_enabled is False


def test_memory_reserved_by_the_driver_is_not_used_memory() -> None:
    gpu = probe("h100_server").gpus[0]
    assert gpu.memory_used_bytes == 4 * MIB
    assert gpu.memory_free_bytes == 81008 * MIB


def test_throttle_reasons_are_words_and_idle_slows_nothing() -> None:
    gpus = probe("h100_server").gpus
    assert gpus[2].throttle_reasons == ("power cap",)
    assert gpus[2].slowed_by == ("power cap",)
    assert gpus[0].throttle_reasons == ("idle",)
    assert gpus[0].slowed_by == ()


def test_every_throttle_bit_has_the_word_of_its_nvml_name() -> None:
    nvml = RecordedNvml("h100_server")
    words = {
        pynvml.nvmlClocksEventReasonGpuIdle: "idle",
        pynvml.nvmlClocksEventReasonSwPowerCap: "power cap",
        pynvml.nvmlClocksEventReasonHwSlowdown: "hardware slowdown",
        pynvml.nvmlClocksEventReasonSwThermalSlowdown: "software thermal slowdown",
        pynvml.nvmlClocksEventReasonHwThermalSlowdown: "hardware thermal slowdown",
        pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "power brake",
        pynvml.nvmlClocksEventReasonSyncBoost: "sync boost",
        pynvml.nvmlClocksEventReasonApplicationsClocksSetting: "application clocks",
        pynvml.nvmlClocksEventReasonDisplayClockSetting: "display clocks",
    }
    for mask, word in words.items():
        nvml.change("0", {"nvmlDeviceGetCurrentClocksEventReasons": mask})
        assert provider_of(nvml).probe().devices[0].throttle_reasons == (word,)


def test_processes_are_listed_once_with_owner_and_largest_memory() -> None:
    processes = probe("h100_server").gpus[2].processes
    assert processes is not None
    assert [(p.pid, p.owner, p.name, p.memory_bytes) for p in processes] == [
        (99, None, None, None),
        (4242, "ana", "python3", 60990 * MIB),
    ]


def test_no_process_is_an_empty_list_and_not_unknown() -> None:
    assert probe("h100_server").gpus[0].processes == ()


def test_nvswitch_joins_every_pair_at_450_gb_s_each_way() -> None:
    machine = probe("h100_server")
    assert len(machine.links) == 28
    assert {
        (link.kind, link.generation, link.count, link.via_switch) for link in machine.links
    } == {("nvlink", 4, 18, True)}
    assert {link.bandwidth_gb_s for link in machine.links} == {450.0}


def test_path_of_a_link_tells_sockets_apart() -> None:
    machine = probe("h100_server")
    uuids = [gpu.uuid for gpu in machine.gpus]
    near, far = machine.link(uuids[0], uuids[3]), machine.link(uuids[5], uuids[0])
    assert near is not None and near.path == "numa node"
    assert far is not None and far.path == "system"


def test_direct_nvlinks_are_counted_to_their_peer() -> None:
    (link,) = probe("v100_pair").links
    assert (link.kind, link.generation, link.count, link.via_switch) == ("nvlink", 2, 2, False)
    assert link.bandwidth_gb_s == 50.0
    assert link.path == "several switches"
    assert link.peer_to_peer is None


def test_numa_node_comes_from_the_kernel(tmp_path: Path) -> None:
    for bus, node in (("1b", "0"), ("9d", "1"), ("43", "-1")):
        folder = tmp_path / "bus/pci/devices" / f"0000:{bus}:00.0"
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
    gpus = probe("h100_server", sysfs=tmp_path).gpus
    assert [gpus[index].numa_node for index in (0, 4, 1, 2)] == [0, 1, None, None]


def test_laptop_without_power_reading_has_none_there_and_all_else() -> None:
    (gpu,) = probe("laptop").gpus
    assert (gpu.power_w, gpu.power_limit_w) == (None, None)
    assert (gpu.ecc_corrected, gpu.ecc_uncorrected) == (None, None)
    assert gpu.mig_enabled is None
    assert gpu.temperature_c == 46.0
    assert gpu.utilization_percent == 7.0
    assert gpu.throttle_reasons == ()
    assert gpu.processes is not None and gpu.processes[0].pid == 1811
    assert not gpu.lost and gpu.problem is None


def test_mig_instances_have_uuid_memory_ids_and_parent() -> None:
    (gpu,) = probe("mig_a100").gpus
    assert gpu.mig_enabled
    assert gpu.utilization_percent is None
    assert [(i.index, i.mig_ids, i.memory_total_bytes) for i in gpu.mig_instances] == [
        (0, (2, 0), 20096 * MIB),
        (1, (3, 0), 9984 * MIB),
        (3, (9, 0), 4864 * MIB),
    ]
    assert {i.mig_parent_uuid for i in gpu.mig_instances} == {gpu.uuid}
    assert gpu.mig_instances[0].name == "NVIDIA A100-SXM4-40GB MIG 3g.20gb"


def test_mig_process_is_listed_on_its_instance() -> None:
    (gpu,) = probe("mig_a100").gpus
    processes = gpu.mig_instances[1].processes
    assert processes is not None
    assert [(p.pid, p.owner, p.memory_bytes) for p in processes] == [(777, "ben", 5000 * MIB)]


def test_usable_units_of_a_split_device_are_its_instances() -> None:
    machine = probe("mig_a100")
    assert machine.usable == machine.gpus[0].mig_instances


def test_destroyed_mig_instance_is_lost_and_the_others_stay() -> None:
    nvml = RecordedNvml("mig_a100")
    provider = provider_of(nvml)
    provider.probe()
    nvml.at("instance destroyed")
    (gpu,) = provider.sample()
    assert [instance.lost for instance in gpu.mig_instances] == [False, True, False]
    assert not gpu.lost


def test_card_lost_between_samples_is_named_and_the_other_goes_on() -> None:
    nvml = RecordedNvml("lost_card")
    provider = provider_of(nvml)
    provider.probe()
    assert [device.lost for device in provider.sample()] == [False, False]
    nvml.at("lost")
    first, second = provider.sample()
    assert not first.lost and first.temperature_c == 33.0
    assert second.lost and second.problem == "The device has fallen off the bus."
    assert second.name == "NVIDIA A100-SXM4-80GB"
    assert second.memory_total_bytes == 81920 * MIB
    assert second.memory_free_bytes is None and second.utilization_percent is None


def test_card_lost_in_the_middle_of_a_reading_keeps_no_half_of_it() -> None:
    nvml = RecordedNvml("lost_card")
    provider = provider_of(nvml)
    provider.probe()
    nvml.at("lost while read")
    second = provider.sample()[1]
    assert second.lost
    assert (second.memory_used_bytes, second.temperature_c, second.power_w) == (None, None, None)


@pytest.mark.parametrize("moment", ["lost", "lost for good", "lost while read"])
def test_card_lost_between_probes_keeps_its_identity(moment: str) -> None:
    nvml = RecordedNvml("lost_card")
    provider = provider_of(nvml)
    before = Machine.probe(provider).gpus
    nvml.at(moment)
    machine = Machine.probe(provider)
    assert [gpu.uuid for gpu in machine.gpus] == [gpu.uuid for gpu in before]
    assert [gpu.lost for gpu in machine.gpus] == [False, True]
    assert machine.gpus[1].name == before[1].name
    assert machine.links == ()
    assert machine.problems == (
        "GPU 1 (NVIDIA A100-SXM4-80GB): The device has fallen off the bus.",
    )


def test_card_lost_before_the_first_probe_does_not_hide_the_other() -> None:
    nvml = RecordedNvml("lost_card")
    nvml.at("lost for good")
    first, second = Machine.probe(provider_of(nvml)).gpus
    assert not first.lost and first.temperature_c == 33.0
    assert second.lost


def test_lost_card_that_comes_back_is_not_lost() -> None:
    nvml = RecordedNvml("lost_card")
    provider = provider_of(nvml)
    provider.probe()
    nvml.at("lost for good")
    provider.probe()
    nvml.change("1", {})
    device = provider.probe().devices[1]
    assert (device.lost, device.problem, device.temperature_c) == (False, None, 33.0)


def test_all_cards_gone_with_the_driver_are_lost_by_name() -> None:
    nvml = RecordedNvml("lost_card")
    provider = provider_of(nvml)
    provider.probe()
    provider.close()
    nvml.break_driver("DRIVER_NOT_LOADED")
    found = provider.probe()
    assert [device.lost for device in found.devices] == [True, True]
    assert "not loaded" in found.problems[0]


def test_device_that_needs_a_reset_says_so_and_shows_what_it_can() -> None:
    nvml = RecordedNvml("lost_card")
    nvml.at("needs reset")
    device = provider_of(nvml).probe().devices[1]
    assert not device.lost and device.power_w is None and device.temperature_c == 33.0
    assert device.problem == "The device must be reset before it can be used."


def test_sample_asks_nothing_that_does_not_change() -> None:
    nvml = RecordedNvml("h100_server")
    provider = provider_of(nvml)
    devices = provider.probe().devices
    nvml.calls.clear()
    assert provider.sample() == devices
    unchanging = {"Name", "UUID", "PciInfo", "CudaComputeCapability", "NvLinkState", "MigMode"}
    assert not unchanging & {name.removeprefix("nvmlDeviceGet") for name in nvml.calls}


def test_sample_before_any_probe_reads_all_devices() -> None:
    assert len(provider_of(RecordedNvml("h100_server")).sample()) == 8


def test_unlike_cards_are_numbered_by_pci_and_not_by_nvml() -> None:
    gpus = probe("unlike_cards").gpus
    assert [gpu.name for gpu in gpus] == ["NVIDIA GeForce GTX 1660", "NVIDIA GeForce RTX 3090"]
    assert [gpu.index for gpu in gpus] == [0, 1]


def test_old_driver_without_newer_calls_is_asked_the_older_ones() -> None:
    small, large = probe("unlike_cards").gpus
    assert large.throttle_reasons == ("hardware slowdown", "hardware thermal slowdown")
    assert large.memory_free_bytes == 24000 * MIB
    assert small.power_limit_w == 120.0


def test_link_of_unlike_cards_is_as_slow_as_the_slower_end() -> None:
    (link,) = probe("unlike_cards").links
    assert (link.kind, link.generation, link.count) == ("pcie", 3, 8)
    assert link.bandwidth_gb_s == pytest.approx(8 * 0.985)
    assert link.path == "host bridge"
    assert link.peer_to_peer is False


def test_driver_and_library_of_different_versions() -> None:
    machine = probe("mismatch")
    assert machine.gpus == ()
    (problem,) = machine.problems
    assert "different versions" in problem and "restart the machine" in problem


def test_no_driver_is_a_machine_without_devices() -> None:
    machine = probe("no_driver")
    assert machine.gpus == () and machine.usable == ()
    assert machine.problems == (
        "No NVIDIA driver is installed: its library libnvidia-ml.so.1 was not found.",
    )
    assert machine.host.memory_total_bytes


def test_process_list_of_an_unfit_library_is_unknown() -> None:
    nvml = RecordedNvml("laptop")

    def unfit(handle: str) -> list[object]:
        raise pynvml.NVMLLibraryMismatchError

    nvml.nvmlDeviceGetComputeRunningProcesses = unfit
    nvml.nvmlDeviceGetGraphicsRunningProcesses = unfit
    device = provider_of(nvml).probe().devices[0]
    assert device.processes is None and device.temperature_c == 46.0


@pytest.mark.parametrize("code", sorted(pynvml.NVMLError._valClassMapping))
def test_no_error_of_any_function_passes_through(code: int) -> None:
    name = next(
        key.removeprefix("NVML_ERROR_")
        for key in dir(pynvml)
        if key.startswith("NVML_ERROR_") and getattr(pynvml, key) == code
    )
    nvml = RecordedNvml("lost_card")
    nvml.change("1", {"*": {"error": name}})
    first, second = provider_of(nvml).probe().devices
    assert first.temperature_c == 33.0
    assert second.lost and second.problem
