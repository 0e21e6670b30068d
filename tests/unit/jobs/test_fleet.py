"""Machines as the queue sees them: what is free, what will be, and what may work together."""

from __future__ import annotations

from dataclasses import replace

from drumline.hardware import Device, GpuProcess, Host, Machine
from drumline.jobs.fleet import Lease, Taken, host_of
from drumline.jobs.queue import Rules, Waiting, decide

GIB = 2**30
RULES = Rules(hold_back_ms=0)


def device(index: int, **fields: object) -> Device:
    values = {
        "name": "H100",
        "memory_total_bytes": 80 * GIB,
        "memory_free_bytes": 79 * GIB,
        "processes": (),
        **fields,
    }
    return Device(f"GPU-{index}", index, "cuda", **values)  # type: ignore[arg-type]


def machine(*devices: Device) -> Machine:
    return Machine(Host("h"), devices)


def taken(leases: dict[str, str] | None = None, **keys: object) -> Taken:
    held = {uuid: Lease(holder) for uuid, holder in (leases or {}).items()}
    return Taken(**{"leases": held, "kept_back": {}, **keys})  # type: ignore[arg-type]


def job(gpus: int | str = 1, **keys: object) -> Waiting:
    values = {"id": "j", "owner": "", "priority": 0, "queued_ms": 0, **keys}
    return Waiting(gpus=gpus, **values)  # type: ignore[arg-type]


def test_each_device_is_free_or_says_why_not() -> None:
    there = machine(
        device(0),
        device(1, memory_free_bytes=GIB),
        device(2, processes=(GpuProcess(7, "ann", 30 * GIB),)),
        device(3, ecc_uncorrected=2),
        device(4).as_lost("fell off the bus"),
        device(5),
    )
    host = host_of("h", there, taken({"GPU-1": "t"}, kept_back={"GPU-5": "for a demo"}))
    assert [slot.state for slot in host.slots] == [
        "free",
        "leased",
        "busy",
        "out",
        "out",
        "reserved",
    ]
    assert host.slots[1].holder == "t"
    assert "process 7 of ann" in host.slots[2].reason
    assert "fell off the bus" in host.slots[4].reason
    assert host.slots[5].reason == "for a demo"
    assert (host.free, host.ever) == (["GPU-0"], ["GPU-0", "GPU-1", "GPU-2"])


def test_memory_that_others_use_now_is_there_for_who_waits_for_it() -> None:
    """The leased device has 1 GiB free now; the training needs 70."""
    there = machine(device(0, memory_free_bytes=GIB, memory_used_bytes=79 * GIB))
    host = host_of("h", there, taken({"GPU-0": "t"}))
    decision = decide(host, [job(memory_bytes=70 * GIB)], 0, RULES)
    assert decision.start is None
    assert decision.held is not None
    assert decision.held.devices == ("GPU-0",)
    assert decide(host, [job(memory_bytes=81 * GIB)], 0, RULES).held is None


def test_memory_that_is_not_free_on_a_free_device_is_not_there() -> None:
    there = machine(device(0, memory_free_bytes=75 * GIB))
    host = host_of("h", there, taken())
    assert decide(host, [job(memory_bytes=76 * GIB)], 0, RULES).start is None
    assert decide(host, [job(memory_bytes=75 * GIB)], 0, RULES).devices == ("GPU-0",)


def test_all_waits_for_every_device_in_order() -> None:
    there = machine(device(0), device(1), device(2).as_lost("gone"))
    busy = host_of("h", there, taken({"GPU-0": "t"}))
    decision = decide(busy, [job("all")], 0, RULES)
    assert decision.start is None
    assert decision.held is not None
    assert set(decision.held.devices) == {"GPU-0", "GPU-1"}
    assert len(decide(host_of("h", there, taken()), [job("all")], 0, RULES).devices) == 2


def test_auto_takes_what_is_free_of_one_model() -> None:
    old = {"name": "A100", "memory_total_bytes": 40 * GIB, "memory_free_bytes": 39 * GIB}
    there = machine(device(0, **old), device(1), device(2), device(3, **old))
    free = host_of("h", there, taken())
    assert decide(free, [job("auto")], 0, RULES).devices == ("GPU-1", "GPU-2")
    left = host_of("h", there, taken({"GPU-1": "t", "GPU-2": "t"}))
    assert decide(left, [job("auto")], 0, RULES).devices == ("GPU-0", "GPU-3")


def test_named_devices_must_be_large_enough() -> None:
    there = machine(device(0), device(1))
    host = host_of("h", there, taken())
    named = job(2, gpu_ids=("GPU-1", "GPU-0"))
    assert decide(host, [named], 0, RULES).devices == ("GPU-1", "GPU-0")
    large = replace(named, memory_bytes=100 * GIB)
    assert decide(host, [large], 0, RULES).start is None
    elsewhere = job(1, gpu_ids=("GPU-9",))
    assert decide(host, [elsewhere], 0, RULES).start is None


def test_the_instances_of_a_device_split_by_mig_are_leased_one_by_one() -> None:
    parts = tuple(
        Device(f"MIG-{n}", n, "cuda", name="1g.10gb", mig_parent_uuid="GPU-0") for n in range(2)
    )
    there = machine(device(0, mig_enabled=True, mig_instances=parts), device(1))
    host = host_of("h", there, taken({"MIG-0": "t"}))
    assert [(slot.uuid, slot.state) for slot in host.slots] == [
        ("MIG-0", "leased"),
        ("MIG-1", "free"),
        ("GPU-1", "free"),
    ]
    assert decide(host, [job(2)], 0, RULES).start is None  # CUDA shows one instance, alone
    parent = host_of("h", there, taken({"GPU-0": "t"}))  # leased before it was split
    assert parent.free == ["GPU-1"]


def test_the_cpu_has_room_for_some_trainings() -> None:
    there = machine()
    assert decide(host_of("h", there, taken()), [job(0)], 0, RULES).start == job(0)
    assert decide(host_of("h", there, taken(on_cpu=2)), [job(0)], 0, RULES).start is None
    assert decide(host_of("h", there, taken()), [job("auto")], 0, RULES).start is None
    only = taken(only_cpu=True)
    assert decide(host_of("h", there, only), [job("auto")], 0, RULES).devices == ()
