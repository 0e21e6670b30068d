"""Devices named by a user."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_drivers import RecordedNvml

from drumline.errors import DeviceError
from drumline.hardware.cpu import Host
from drumline.hardware.device import Device
from drumline.hardware.machine import Machine
from drumline.hardware.providers.nvidia import NvidiaProvider
from drumline.hardware.selection import resolve_devices


def machine_of(name: str, moment: str | None = None) -> Machine:
    nvml = RecordedNvml(name)
    if moment:
        nvml.at(moment)
    return Machine.probe(NvidiaProvider(nvml))


SERVER = machine_of("h100_server")


def refused(reference: str, machine: Machine = SERVER) -> DeviceError:
    with pytest.raises(DeviceError) as raised:
        resolve_devices(reference, machine)
    return raised.value


@settings(deadline=None)
@given(st.lists(st.integers(0, 7), min_size=1, unique=True), st.data())
def test_indices_uuids_and_prefixes_mix_in_any_order(
    indices: list[int], data: st.DataObject
) -> None:
    entries = []
    for index in indices:
        uuid = SERVER.gpus[index].uuid
        forms = [str(index), uuid, uuid.upper(), uuid[:8], f" {uuid[4:12]} "]
        entries.append(data.draw(st.sampled_from(forms)))
    assert [gpu.index for gpu in resolve_devices(",".join(entries), SERVER)] == indices


def test_unknown_index_names_those_there_are() -> None:
    error = refused("0,8")
    assert "There is no GPU 8" in error.message
    assert "GPUs 0, 1, 2, 3, 4, 5, 6, 7" in error.message
    assert error.remedy == "The nearest is 7."
    assert error.values["indices"] == list(range(8))


def test_ambiguous_prefix_names_all_it_fits() -> None:
    devices = (
        Device("GPU-ab1", 0, "cuda"),
        Device("GPU-ab2", 1, "cuda"),
        Device("GPU-c", 2, "cuda"),
    )
    error = refused("ab", Machine(Host("here"), devices))
    assert "GPU 0 (GPU-ab1) and GPU 1 (GPU-ab2)" in error.message
    assert "GPU-c" not in error.message


def test_ambiguous_prefix_is_told_what_would_tell_apart() -> None:
    devices = tuple(Device(f"GPU-ab{n}777", n, "cuda") for n in (1, 2))
    error = refused("GPU-a", Machine(Host("here"), devices))
    assert error.remedy == "Give more of the UUID: GPU-ab1 or GPU-ab2."


def test_whole_uuid_that_begins_another_is_not_ambiguous() -> None:
    devices = (Device("GPU-ab", 0, "cuda"), Device("GPU-abc", 1, "cuda"))
    machine = Machine(Host("here"), devices)
    assert [gpu.index for gpu in resolve_devices("GPU-ab", machine)] == [0]


def test_unknown_uuid_offers_the_nearest() -> None:
    uuid = SERVER.gpus[3].uuid
    error = refused(uuid[:-1] + "f")
    assert f"Did you mean {uuid}?" in error.remedy


def test_one_device_named_twice_in_two_ways() -> None:
    error = refused(f"1,{SERVER.gpus[1].uuid}")
    assert "names GPU 1" in error.message and "twice" in error.message


@pytest.mark.parametrize("reference", ["", "0,,1", "0,", " "])
def test_empty_entry(reference: str) -> None:
    assert "empty entry" in refused(reference).message


@pytest.mark.parametrize("reference", ["-1", "0-3", "1.0", "²"])
def test_text_that_is_no_index_is_refused(reference: str) -> None:
    assert "begins with" in refused(reference).message


def test_lost_device_cannot_be_chosen() -> None:
    error = refused("1", machine_of("lost_card", "lost while read"))
    assert "is lost: The device has fallen off the bus." in error.message


def test_split_device_offers_its_instances() -> None:
    machine = machine_of("mig_a100")
    error = refused("0", machine)
    assert "split by MIG" in error.message
    assert all(instance.uuid in error.remedy for instance in machine.usable)


def test_mig_instance_by_prefix() -> None:
    (device,) = resolve_devices("MIG-2d3", machine_of("mig_a100"))
    assert device.mig_ids == (3, 0)


def test_machine_without_gpu_says_why() -> None:
    error = refused("0", machine_of("no_driver"))
    assert "There is no GPU" in error.message and "No NVIDIA driver" in error.message
    assert error.remedy == "Use devices=cpu to train on the CPU."


def test_machine_gives_one_device_by_reference() -> None:
    assert SERVER.device("3").index == 3
    assert SERVER.device(SERVER.gpus[5].uuid[:8]).index == 5
