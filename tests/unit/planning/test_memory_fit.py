"""Plans for runs whose memory is known; the estimates are made up."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from drumline.config import Mode, RunConfig, parse_config
from drumline.errors import BadInput, DeviceError
from drumline.hardware import Host, Machine
from drumline.planning import plan
from drumline.planning.cost_model import Candidate
from drumline.planning.memory import MemoryEstimate, estimate, fits
from drumline.planning.memory_constants import DeviceConstants
from drumline.planning.memory_fit import NotKnown, within
from drumline.planning.memory_trace import MemoryTrace

GIB = 2**30
EMPTY = estimate(MemoryTrace(1, 1, 1, 1, (), (), {}, ()), constants=DeviceConstants(0, 0, 0))


class Known:
    """A run that needs 4 GiB and 1 GiB for each sample; on Hopper 1 GiB of context more.

    Such with `weights` in the name of the config need so many instead of the 4.
    """

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.weights = int(config.name.removeprefix("weights ")) if "weights" in config.name else 4

    def at(self, size: int, capability: tuple[int, int] | None) -> MemoryEstimate:
        context = GIB if capability == (9, 0) else 0
        total = (self.weights + size) * GIB
        return replace(EMPTY, micro_batch=size, reserved_peak=total, context=context)

    def need(self, world_size: int, capability: tuple[int, int] | None) -> MemoryEstimate:
        share = self.config.global_batch // world_size
        return self.at(min(self.config.micro_batch or share, share), capability)

    def largest(
        self, world_size: int, capability: tuple[int, int] | None, capacity: int
    ) -> MemoryEstimate | None:
        sizes = range(self.config.global_batch // world_size, 0, -1)
        found = (self.at(size, capability) for size in sizes)
        return next((each for each in found if fits(each, capacity).fits), None)

    def smallest(self, world_size: int, capability: tuple[int, int] | None) -> MemoryEstimate:
        return self.at(1, capability)

    def cut(self) -> Known:
        return Cut(self.config)


class Cut(Known):
    """The same, its 4 GiB cut among the ranks."""

    def need(self, world_size: int, capability: tuple[int, int] | None) -> MemoryEstimate:
        found = super().need(world_size, capability)
        spared = self.weights * GIB * (world_size - 1) // world_size
        return replace(found, reserved_peak=found.reserved_peak - spared)

    def cut(self) -> Known:
        raise AssertionError("it is cut already")


def planned(devices: str, there: str, global_batch: int, **keys: Any):  # type: ignore[no-untyped-def]
    config = parse_config({"steps": 1, "global_batch": global_batch, "devices": devices, **keys})
    return plan(config, Machine.probe(simulate=there), memory=Known(config))


def test_what_fits_is_planned_as_before_and_the_need_is_shown() -> None:
    made = planned("auto", "8xH100", 64)
    (kind,) = made.memory
    assert (made.world_size, kind.chosen) == (8, 8)
    assert kind.needed.total == (4 + 8 + 1) * GIB
    assert kind.largest is not None and kind.largest.micro_batch == 8
    read = json.loads(json.dumps(made.as_dict()))["memory"][0]
    assert read["left"] == read["capacity"] - 13 * GIB
    assert read["fits"] is True and read["needed"]["total"] == 13 * GIB


def test_devices_that_are_too_small_are_not_chosen() -> None:
    made = planned("1", "4xL4+1xH100", 40)
    assert [device.name[:11] for device in made.devices] == ["NVIDIA H100"]
    small = next(kind for kind in made.memory if kind.name.startswith("NVIDIA L4"))
    assert small.chosen == 0 and small.fit is not None and not small.fit.fits
    assert small.largest is not None and small.largest.micro_batch == 19  # of 23.5 GiB


def test_the_smallest_card_that_suffices_is_taken() -> None:
    made = planned("1", "1xL4+1xH100", 10)
    assert made.devices[0].name.startswith("NVIDIA L4")


def test_fewer_devices_are_checked_with_their_larger_share() -> None:
    made = planned("auto", "8xL4+2xH100", 128)  # 16 samples on 8 L4
    assert made.world_size == 8
    with pytest.raises(DeviceError, match=r"on each of 8 devices with micro-batches of 32"):
        planned("8", "8xL4+2xH100", 256)
    assert planned("auto", "8xL4+2xH100", 128, micro_batch=4).memory[0].needed.micro_batch == 4


def test_a_named_card_that_is_too_small_is_told_what_fits_and_where() -> None:
    with pytest.raises(DeviceError) as caught:
        planned("0,", "1xL4+1xH100", 40)
    said = f"{caught.value.message} {caught.value.remedy}"
    assert "needs 44.0 GiB on its device with micro-batches of 40" in said
    assert "has 23.5 GiB free: short by 20.5 GiB" in said
    assert "GPU 1 (NVIDIA H100" in said and "micro_batch=19 fits and needs 23.0 GiB" in said


def test_where_not_even_one_sample_fits_a_smaller_model_is_asked_for() -> None:
    class Huge(Known):
        def at(self, size: int, capability: tuple[int, int] | None) -> MemoryEstimate:
            return replace(super().at(size, capability), reserved_peak=(100 + size) * GIB)

    config = parse_config({"steps": 1, "global_batch": 8})
    with pytest.raises(DeviceError) as caught:
        plan(config, Machine.probe(simulate="1xH100"), memory=Huge(config))
    assert "Even micro_batch=1 needs 102.0 GiB there" in caught.value.remedy
    assert "larger card" in caught.value.remedy


def test_processes_on_the_cpu_share_the_hosts_memory_and_are_never_refused() -> None:
    config = parse_config({"steps": 1, "global_batch": 8, "devices": "cpu:2"})
    host = Host("here", cpu_usable=2, memory_available_bytes=10 * GIB)
    (kind,) = plan(config, Machine(host), memory=Known(config)).memory
    assert kind.capacity == 5 * GIB
    assert kind.fit is not None and kind.fit.left == -3 * GIB
    (unknown,) = plan(config, Machine(Host("here", cpu_usable=2)), memory=Known(config)).memory
    assert unknown.fit is None and unknown.as_dict()["fits"] is None


def test_without_questions_there_is_no_memory_in_the_plan() -> None:
    config = parse_config({"steps": 1, "global_batch": 8})
    made = plan(config, Machine.probe(simulate="1xH100"))
    assert made.as_dict()["memory"] == []


def test_a_candidate_that_does_not_fit_cannot_be_selected() -> None:
    config = parse_config({"steps": 1, "global_batch": 128})
    machine = Machine.probe(simulate="8xL4")
    devices = plan(config, machine).devices
    one, eight = (
        within(Candidate("distributed", count), machine, devices, Known(config)) for count in (1, 8)
    )
    assert (one.selectable, one.note) == (False, "does not fit: short by 108.5 GiB")
    assert eight.selectable
    other = Candidate("dataparallel", 8, selectable=False, note="never")
    assert within(other, machine, devices, Known(config)) == other


def test_replicas_that_fit_no_device_are_cut_if_the_mode_is_open() -> None:
    made = planned("auto", "4xL4", 4, name="weights 40")  # an L4 has 23.5 GiB
    assert (made.mode, made.world_size, made.shares) == (Mode.SHARDED, 4, (1, 1, 1, 1))
    (kind,) = made.memory
    assert kind.needed.total == (40 // 4 + 1) * GIB
    assert "a replica fits no device" in made.reasons[-1]
    assert "a rank needs 11.0 GiB" in made.reasons[-1]


def test_smaller_micro_batches_come_before_another_mode() -> None:
    with pytest.raises(DeviceError) as caught:
        planned("auto", "4xL4", 160, name="weights 10")
    assert "micro_batch=13 fits" in caught.value.remedy


def test_what_does_not_fit_when_it_is_cut_either_is_refused() -> None:
    with pytest.raises(DeviceError, match="short by"):
        planned("auto", "4xL4", 4, name="weights 400")


def test_a_mode_that_was_named_is_kept() -> None:
    with pytest.raises(DeviceError, match="short by"):
        planned("auto", "4xL4", 4, name="weights 40", distributed={"mode": "distributed"})


def test_what_is_only_shown_may_be_unknown_and_what_decides_may_not() -> None:
    class Kept(Known):
        def largest(self, *_: Any) -> MemoryEstimate | None:
            raise NotKnown

    config = parse_config({"steps": 1, "global_batch": 16})
    (kind,) = plan(config, Machine.probe(simulate="1xL4"), memory=Kept(config)).memory
    assert kind.largest is None and kind.fit is not None and kind.fit.fits
    large = parse_config({"steps": 1, "global_batch": 64})
    with pytest.raises(NotKnown):  # whether a smaller micro-batch fits decides what is said
        plan(large, Machine.probe(simulate="1xL4"), memory=Kept(large))


def test_a_config_that_cannot_be_cut_is_refused_for_its_memory() -> None:
    class Whole(Known):
        def cut(self) -> Known:
            raise BadInput("shares=measured does not go with mode sharded")

    config = parse_config({"steps": 1, "global_batch": 2, "name": "weights 30"})
    with pytest.raises(DeviceError, match="short by"):
        plan(config, Machine.probe(simulate="2xL4"), memory=Whole(config))
