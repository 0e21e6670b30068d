"""Which devices a run is best given: arithmetic on machines whose answer is known by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drumline.config import parse_config
from drumline.errors import DeviceError
from drumline.hardware import Device, GpuProcess, Host, Link, Machine
from drumline.planning import plan
from drumline.planning.recommend import recommend, validate

GIB = 2**30
MODELS = {"H100": 80, "A100": 40, "L4": 24}


def device(index: int, model: str = "H100", **fields: Any) -> Device:
    total = MODELS[model] * GIB
    known: dict[str, Any] = {
        "name": model,
        "memory_total_bytes": total,
        "memory_free_bytes": total,
        "processes": (),
    }
    return Device(f"GPU-{index}", index, "cuda", **{**known, **fields})


def machine(*devices: Device, nvlinks: set[tuple[int, int]] | None = None) -> Machine:
    """PCIe between all: one host bridge for each four; NVLink for the pairs named."""
    links = []
    for a, b in combinations(devices, 2):
        if (a.index, b.index) in (nvlinks or set()):
            links.append(Link(a.uuid, b.uuid, "nvlink", 4, 18, 450.0, "system", peer_to_peer=True))
            continue
        path = "host bridge" if a.index // 4 == b.index // 4 else "system"
        links.append(Link(a.uuid, b.uuid, "pcie", 5, 16, 63.0, path))
    return Machine(Host("here", cpu_usable=8), devices, tuple(links))


def chosen(there: Machine, count: Any, *args: Any, **keywords: Any) -> list[int]:
    return [found.index for found in recommend(there, count, *args, **keywords).devices]


def held(bytes_held: int) -> dict[str, Any]:
    return {"processes": (GpuProcess(77, "ada", bytes_held),)}


def test_an_nvlink_pair_comes_before_pcie() -> None:
    there = machine(*map(device, range(4)), nvlinks={(1, 3)})
    assert chosen(there, 2) == [1, 3]


def test_one_host_bridge_comes_before_two_sockets() -> None:
    there = machine(*map(device, range(8)))
    assert chosen(there, 2, occupied=["GPU-0", "GPU-1", "GPU-2"]) == [4, 5]
    assert chosen(there, 4, occupied=["GPU-0"]) == [4, 5, 6, 7]


def test_a_single_device_does_not_break_up_an_nvlink_pair() -> None:
    there = machine(*map(device, range(3)), nvlinks={(0, 1)})
    assert chosen(there, 1) == [2]


def test_one_model_comes_before_a_tight_mix() -> None:
    there = machine(device(0), device(1, "L4"), device(2), nvlinks={(0, 1)})
    assert chosen(there, 2) == [0, 2]


def test_unlike_cards_are_mixed_only_where_no_model_has_enough() -> None:
    there = machine(device(0), device(1, "L4"), device(2, "L4"))
    assert chosen(there, 2, 10 * GIB) == [1, 2]
    assert chosen(there, 3) == [0, 1, 2]


def test_large_cards_are_left_for_large_jobs() -> None:
    there = machine(device(0), device(1, "A100"), device(2, "L4"))
    assert chosen(there, 1, 10 * GIB) == [2]
    assert chosen(there, 1, 30 * GIB) == [1]
    assert chosen(there, 1, 60 * GIB) == [0]


def test_an_unknown_need_gets_the_largest() -> None:
    assert chosen(machine(device(0, "L4"), device(1)), 1) == [1]


def test_auto_takes_all_free_devices_of_one_model() -> None:
    there = machine(device(0, "L4"), *map(device, range(1, 5)))
    assert chosen(there, "auto", occupied=["GPU-2"]) == [1, 3, 4]
    assert chosen(there, "auto", at_most=2) == [1, 2]
    said = " ".join(recommend(there, "auto").reasons)
    assert "4 of 5 GPUs" in said
    assert "left for others: L4" in said
    assert "left out" not in said


def test_devices_that_are_left_out_are_named_with_who_holds_them() -> None:
    there = machine(*map(device, range(3)), device(3, **held(GIB)))
    found = recommend(there, "auto", occupied={"GPU-1": "process 4711 of ann (/runs/x)"})
    assert [each.index for each in found.devices] == [0, 2]
    assert (
        "devices: left out: GPU 1 (H100, GPU-1): held by process 4711 of ann (/runs/x); "
        "GPU 3 (H100, GPU-3): in use: process 77 of ada holds 1.0 GiB"
    ) in found.reasons


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"lost": True, "problem": "fell off the bus"}, "lost: fell off the bus"),
        ({"ecc_uncorrected": 3}, "3 uncorrected memory errors"),
        (
            {
                "throttle_reasons": ("hardware thermal slowdown",),
                "temperature_c": 91.0,
                "sm_clock_mhz": 600,
                "max_sm_clock_mhz": 1980,
            },
            r"slowed by hardware thermal slowdown \(91 °C, 600 of 1980 MHz\)",
        ),
        (held(3 * GIB), "process 77 of ada holds 3.0 GiB"),
        ({"memory_used_bytes": 9 * GIB}, "9.0 GiB are held by processes that cannot be seen"),
        ({"memory_free_bytes": 20 * GIB}, "20.0 GiB of 80.0 GiB free, 30.0 GiB needed, short by"),
    ],
)
def test_a_device_that_cannot_be_given_says_why(fields: dict[str, Any], said: str) -> None:
    there = machine(device(0, **fields), device(1))
    assert chosen(there, "auto", 30 * GIB) == [1]
    with pytest.raises(DeviceError, match=said):
        recommend(there, 2, 30 * GIB)
    refused, fine = validate(there, ["0", "GPU-1"], 30 * GIB)
    assert (refused.ok, fine.ok) == (False, True)
    assert fine.reason == "free: 80.0 GiB free of 80.0 GiB"


@pytest.mark.parametrize(
    "fields",
    [
        {"throttle_reasons": ("power cap",)},
        {"ecc_uncorrected": None},
        held(100 * 2**20),
        {"memory_total_bytes": None, "memory_free_bytes": None},
    ],
)
def test_a_device_that_is_well_enough_is_given(fields: dict[str, Any]) -> None:
    assert chosen(machine(device(0, **fields)), 1, GIB) == [0]


def test_verdicts_of_what_is_not_there_twice_or_reserved() -> None:
    there = machine(*map(device, range(3)))
    verdicts = validate(there, ["7", "1", "GPU-1", "GPU-2"], reserved=["GPU-2"])
    assert [verdict.ok for verdict in verdicts] == [False, True, False, False]
    assert "no GPU 7" in verdicts[0].reason
    assert "The nearest is 2" in verdicts[0].reason
    assert "twice, as 1 and as GPU-1" in verdicts[2].reason
    assert "reserved" in verdicts[3].reason


def test_mig_instances_are_used_one_at_a_time() -> None:
    slices = tuple(
        Device(f"MIG-{n}", n, "cuda", "MIG 1g.10gb", memory_total_bytes=10 * GIB,
               mig_parent_uuid="GPU-0") for n in range(2)
    )  # fmt: skip
    there = machine(device(0, mig_enabled=True, mig_instances=slices), device(1))
    small = recommend(there, 1, 5 * GIB).devices[0]
    assert small.uuid == "MIG-0"
    assert chosen(there, "auto") == [1]
    with pytest.raises(DeviceError, match="Only 1 of them can be used together"):
        recommend(there, 2)
    assert "alone" in validate(there, ["MIG-0", "1"])[0].reason
    with pytest.raises(DeviceError, match="no more than one MIG instance"):
        plan(parse_config({"steps": 1, "devices": "MIG-0,1"}), there)
    leased = recommend(there, 1, 5 * GIB, occupied=["GPU-0"]).devices[0]
    assert leased.uuid == "GPU-1"


def test_families_are_never_mixed() -> None:
    there = machine(device(0), replace(device(1), kind="rocm"))
    with pytest.raises(DeviceError, match="Only 1 of them"):
        recommend(there, 2)


def test_a_refusal_names_the_numbers_and_what_would_work() -> None:
    there = machine(*map(device, range(3)))
    with pytest.raises(DeviceError, match=r"3 GPUs .* has 3, 1 of them not free") as raised:
        recommend(there, 3, occupied=["GPU-1"])
    assert "GPU 1 (H100, GPU-1): held by another training" in raised.value.message
    assert raised.value.remedy == "Use devices=2 or fewer."
    with pytest.raises(DeviceError, match=r"short by 20.0 GiB") as raised:
        recommend(there, 1, 100 * GIB)
    assert "80.0 GiB" in raised.value.remedy


def test_a_named_device_that_is_leased_is_told_which_is_free() -> None:
    config = parse_config({"steps": 1, "devices": "0,1"})
    there = machine(device(0), device(1), device(2, "L4"), device(3))
    with pytest.raises(DeviceError, match=r"GPU 1 .* held by another") as raised:
        plan(config, there, ["GPU-1"])
    assert "GPU 3 (H100, GPU-3) is free" in raised.value.remedy


def test_a_named_device_that_is_busy_is_used_with_a_caution() -> None:
    made = plan(parse_config({"steps": 1, "devices": "0,"}), machine(device(0, **held(GIB))))
    assert made.devices[0].index == 0
    assert any("although in use" in reason for reason in made.reasons)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    models = draw(st.lists(st.sampled_from(list(MODELS)), min_size=1, max_size=8))
    states: list[dict[str, Any]] = [{}, {}, {}, held(4 * GIB), {"lost": True}]
    states += [{"ecc_uncorrected": 1}, {"memory_free_bytes": 12 * GIB}]
    devices = [
        device(index, model, **draw(st.sampled_from(states))) for index, model in enumerate(models)
    ]
    pairs = list(combinations(range(len(models)), 2))
    nvlinks = draw(st.sets(st.sampled_from(pairs))) if pairs else set()
    return machine(*devices, nvlinks=nvlinks)


def free_of(there: Machine, need: int | None, occupied: set[str]) -> list[Device]:
    return [
        found
        for found in there.devices
        if not found.lost
        and not found.ecc_uncorrected
        and not found.processes
        and found.uuid not in occupied
        and (need is None or (found.memory_free_bytes or 0) >= need)
    ]


needs = st.none() | st.integers(1, 90).map(lambda size: size * GIB)


@settings(max_examples=200, deadline=None)
@given(there=machines(), count=st.integers(1, 8), need=needs, taken=st.sets(st.integers(0, 7)))
def test_any_choice_is_of_distinct_free_devices_that_are_large_enough(
    there: Machine, count: int, need: int | None, taken: set[int]
) -> None:
    occupied = {f"GPU-{index}" for index in taken}
    free = free_of(there, need, occupied)
    if len(free) < count:
        with pytest.raises(DeviceError):
            recommend(there, count, need, occupied)
        return
    found = recommend(there, count, need, occupied)
    assert found == recommend(there, count, need, occupied)
    assert len({given.uuid for given in found.devices}) == count == len(found.devices)
    assert set(found.devices) <= set(free)
    models = [given.name for given in free]
    if any(models.count(name) >= count for name in models):
        assert len({given.name for given in found.devices}) == 1
    uuids = [given.uuid for given in found.devices]
    assert all(verdict.ok for verdict in validate(there, uuids, need, occupied))


@settings(max_examples=100, deadline=None)
@given(there=machines(), count=st.integers(1, 6), need=st.integers(1, 90), less=st.integers(1, 90))
def test_a_smaller_need_is_never_harder_to_meet(
    there: Machine, count: int, need: int, less: int
) -> None:
    try:
        recommend(there, count, need * GIB)
    except DeviceError:
        return
    assert len(recommend(there, count, min(need, less) * GIB).devices) == count


@settings(max_examples=100, deadline=None)
@given(count=st.integers(2, 6), pairs=st.sets(st.sampled_from(list(combinations(range(6), 2)))))
def test_a_pair_with_nvlink_is_found_wherever_there_is_one(
    count: int, pairs: set[tuple[int, int]]
) -> None:
    there = machine(*map(device, range(count)), nvlinks=pairs)
    a, b = recommend(there, 2).devices
    link = there.link(a.uuid, b.uuid)
    assert link is not None
    assert (link.kind == "nvlink") == any(max(pair) < count for pair in pairs)


@settings(max_examples=100, deadline=None)
@given(there=machines(), need=needs, at_most=st.integers(1, 8))
def test_auto_is_of_one_model_and_within_its_bound(
    there: Machine, need: int | None, at_most: int
) -> None:
    free = free_of(there, need, set())
    if not free:
        with pytest.raises(DeviceError, match=r"is free|has none"):
            recommend(there, "auto", need, at_most=at_most)
        return
    found = recommend(there, "auto", need, at_most=at_most).devices
    assert 1 <= len(found) <= at_most
    assert len({given.name for given in found}) == 1
    assert set(found) <= set(free)


def test_many_devices_are_chosen_in_reasonable_time() -> None:
    there = Machine.probe(simulate="64xH100+64xL4")
    found = recommend(there, 32, 10 * GIB)
    assert {given.name for given in found.devices} == {"NVIDIA L4 (simulated)"}
