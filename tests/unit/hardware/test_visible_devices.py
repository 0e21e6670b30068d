"""CUDA_VISIBLE_DEVICES against physical devices: CUDA's documented cases, and torch as a peer."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch.cuda
from hypothesis import given, settings
from hypothesis import strategies as st

from drumline.config.environment import visible_devices_setting
from drumline.hardware.device import Device
from drumline.hardware.visible import visible_devices

UUIDS = [
    "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6",
    "GPU-8931aaaa-0000-4106-c12f-20bd9faed9f6",
    "GPU-0a1b2c3d-0000-4106-c12f-20bd9faed9f6",
    "GPU-0a1b2c3e-0000-4106-c12f-20bd9faed9f6",
]
LIKE = [Device(uuid, index, "cuda", name="same") for index, uuid in enumerate(UUIDS)]
SLOW = Device(
    "GPU-1", 0, "cuda", name="slow", cores=1408, max_sm_clock_mhz=2130, compute_capability=(7, 5)
)
FAST = Device(
    "GPU-2", 1, "cuda", name="fast", cores=10496, max_sm_clock_mhz=2100, compute_capability=(8, 6)
)
INSTANCES = tuple(
    Device(f"MIG-{n}0000000-aaaa", n, "cuda", mig_parent_uuid="GPU-5c89", mig_ids=(n + 2, 0))
    for n in range(2)
)
SPLIT = Device("GPU-5c89", 0, "cuda", mig_enabled=True, mig_instances=INSTANCES)


def shown(value: str | None, devices: Any = LIKE, order: str | None = "PCI_BUS_ID") -> list[int]:
    return [device.index for device in visible_devices(devices, value, order).devices]


@pytest.mark.parametrize(
    ("value", "indices"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("2,1", [2, 1]),
        ("0,2,-1,1", [0, 2]),
        ("0,9,1", [0]),
        ("NoDevFiles", []),
        ("1,1", []),
        ("1gpu,3rd", [1, 3]),
        ("GPU-8932f937", [0]),
        ("GPU-0a1b2c3e,GPU-8931", [3, 1]),
        ("GPU-893", []),  # the beginning of two
        ("GPU-8931,GPU-zz,GPU-8932", [1]),
        ("GPU-8931,GPU-8931aaaa", []),  # one device twice
        ("GPU-8931,0", [1]),  # no mixing
        ("0,GPU-8931", [0]),
    ],
)
def test_cases_of_cuda(value: str | None, indices: list[int]) -> None:
    assert shown(value) == indices


def test_where_the_list_stops_is_told() -> None:
    assert visible_devices(LIKE, "0,9,1", "PCI_BUS_ID").stopped_at == "9"
    assert visible_devices(LIKE, "GPU-8931,GPU-893", None).stopped_at == "GPU-893"
    assert visible_devices(LIKE, "2,1", "PCI_BUS_ID").stopped_at is None
    assert visible_devices(LIKE, "", "PCI_BUS_ID").stopped_at is None


def peer(value: str) -> list[int]:
    """The answer of torch, which counts devices through NVML by the same rules."""
    with mock.patch.dict("os.environ", {"CUDA_VISIBLE_DEVICES": value}):
        parsed = torch.cuda._parse_visible_devices()
    if parsed and isinstance(parsed[0], str):
        return torch.cuda._transform_uuid_to_ordinals(parsed, UUIDS)
    count = next((i for i, n in enumerate(parsed) if n >= len(UUIDS)), len(parsed))
    return parsed[:count]


numbers = st.one_of(
    st.integers(-2, 6).map(str), st.sampled_from(["", "x", "1x", " 2", "+1", "GPU-8932"])
)
prefixes = st.one_of(
    st.tuples(st.sampled_from(UUIDS), st.integers(4, 40)).map(lambda pair: pair[0][: pair[1]]),
    st.sampled_from(["GPU-zz", "", "1", "gpu-8932f937"]),
)


@settings(deadline=None)
@given(st.one_of(st.lists(numbers, max_size=6), st.lists(prefixes, max_size=5)).map(",".join))
def test_agrees_with_torch_on_any_list(value: str) -> None:
    assert shown(value) == peer(value)


@settings(deadline=None)
@given(st.permutations(range(4)), st.data())
def test_any_order_by_index_uuid_or_prefix_names_the_same_devices(
    order: list[int], data: st.DataObject
) -> None:
    lengths = [data.draw(st.integers(12, len(uuid))) for uuid in UUIDS]
    assert shown(",".join(map(str, order))) == order
    assert shown(",".join(UUIDS[n] for n in order)) == order
    assert shown(",".join(UUIDS[n][: lengths[n]] for n in order)) == order


@settings(deadline=None)
@given(st.text(alphabet="0123456789,-GPUMI+ xX/", max_size=20))
def test_any_text_gives_devices_without_repeats(value: str) -> None:
    indices = shown(value)
    assert len(indices) == len(set(indices))
    assert set(indices) <= {0, 1, 2, 3}


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=5), st.integers(0, 5))
def test_what_follows_an_invalid_entry_does_not_matter(entries: list[int], more: int) -> None:
    value = ",".join(map(str, entries)) + ",-1"
    assert shown(value) == shown(f"{value},{more}")


def test_fastest_first_is_the_default_and_a_guess() -> None:
    found = visible_devices([SLOW, FAST], "0")
    assert [device.name for device in found.devices] == ["fast"]
    assert not found.exact
    assert visible_devices([SLOW, FAST], "0", "FASTEST_FIRST") == found


def test_pci_order_is_exact() -> None:
    found = visible_devices([SLOW, FAST], "0", "PCI_BUS_ID")
    assert [device.name for device in found.devices] == ["slow"]
    assert found.exact


def test_like_devices_and_uuids_need_no_guess() -> None:
    assert visible_devices(LIKE, "2,0").exact
    assert [device.index for device in visible_devices(LIKE, "2,0").devices] == [2, 0]
    assert visible_devices([SLOW, FAST], "GPU-2").exact


def test_faster_clock_on_the_same_model_is_no_guess_away_from_pci_order() -> None:
    a = Device("GPU-a", 0, "cuda", name="one", cores=10, max_sm_clock_mhz=1000)
    b = Device("GPU-b", 1, "cuda", name="one", cores=10, max_sm_clock_mhz=1000)
    assert [device.uuid for device in visible_devices([b, a], None).devices] == ["GPU-a", "GPU-b"]


@pytest.mark.parametrize(
    ("value", "uuid"),
    [
        ("MIG-10000000-aaaa", "MIG-10000000-aaaa"),
        ("MIG-1", "MIG-10000000-aaaa"),
        ("MIG-1,MIG-0", "MIG-10000000-aaaa"),  # a process sees one instance
        ("MIG-GPU-5c89/3/0", "MIG-10000000-aaaa"),  # the older name
        ("0", "MIG-00000000-aaaa"),
        (None, "MIG-00000000-aaaa"),
    ],
)
def test_mig_instances(value: str | None, uuid: str) -> None:
    found = visible_devices([SPLIT], value, "PCI_BUS_ID").devices
    assert [device.uuid for device in found] == [uuid]


def test_lost_and_other_makers_devices_are_not_counted() -> None:
    devices = [
        Device("GPU-a", 0, "cuda", lost=True),
        Device("b", 1, "rocm"),
        Device("GPU-c", 2, "cuda"),
    ]
    assert shown("0", devices) == [2]


def test_reader_of_the_two_variables() -> None:
    assert visible_devices_setting({}) == (None, None)
    env = {"CUDA_VISIBLE_DEVICES": "", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert visible_devices_setting(env) == ("", "PCI_BUS_ID")
