"""From a config and a machine to a plan."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from pydantic import Field

from drumline.config import Mode, RunConfig, TaskConfig, parse_config
from drumline.errors import BadInput, DeviceError, DrumlineError
from drumline.hardware import Device, GpuProcess, Host, Machine
from drumline.planning import plan
from drumline.planning.plan import spread


class GroupedTaskConfig(TaskConfig):
    """A task whose loss couples groups of samples."""

    implementation: ClassVar[str] = "no_such:Task"
    group: int = Field(4, description="samples of a group")

    @property
    def granularity(self) -> int:
        return self.group


def machine(gpus: int, cores: int | None = 8, kind: str = "cuda") -> Machine:
    devices = [Device(f"GPU-{index}abc", index, kind, name="H100") for index in range(gpus)]
    return Machine(Host("here", cpu_usable=cores), tuple(devices))


def changed(there: Machine, index: int, **fields: Any) -> Machine:
    devices = list(there.devices)
    devices[index] = replace(devices[index], **fields)
    return replace(there, devices=tuple(devices))


def config(**keys: Any) -> RunConfig:
    return parse_config({"steps": 1, "global_batch": 64, **keys})


def grouped(**keys: Any) -> RunConfig:
    return config(task={"name": f"{__name__}:GroupedTaskConfig"}, **keys)


def indices(devices: str, there: Machine, occupied: tuple[str, ...] = ()) -> list[int | None]:
    return [device.index for device in plan(config(devices=devices), there, occupied).devices]


def test_auto_takes_all_gpus_that_are_free() -> None:
    there = changed(machine(5), 1, processes=(GpuProcess(1, memory_bytes=600 * 2**20),))
    there = changed(there, 2, lost=True, problem="fell off the bus")
    assert indices("auto", there, occupied=("GPU-3abc",)) == [0, 4]


def test_a_device_that_holds_only_a_desktop_is_free() -> None:
    small = (GpuProcess(1, memory_bytes=200 * 2**20), GpuProcess(2, memory_bytes=None))
    assert indices("auto", changed(machine(2), 0, processes=small)) == [0, 1]


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        ("all", [0, 1, 2, 3]),
        ("2", [0, 1]),
        ("3,1", [3, 1]),
        ("0,", [0]),
        ("GPU-2abc,0", [2, 0]),
        (" auto ", [0, 1, 2, 3]),
    ],
)
def test_devices_as_asked_in_the_order_asked(asked: str, chosen: list[int]) -> None:
    assert indices(asked, machine(4)) == chosen


@pytest.mark.parametrize(
    ("asked", "there", "said"),
    [
        ("5", machine(4), "5 GPUs were asked for, and this machine has 4"),
        ("2", machine(0), "2 GPUs were asked for, and this machine has none"),
        ("all", machine(0), "has none"),
        ("0", machine(4), "0 devices"),
        ("cpu:0", machine(4), "0 CPU processes"),
        ("7,", machine(4), "no GPU 7"),
        ("1,1", machine(4), "twice"),
        ("1,,2", machine(4), "empty entry"),
        ("GPU-9", machine(4), "GPU-9"),
        ("3", changed(machine(3), 0, lost=True), "has 2"),
    ],
)
def test_devices_that_are_not_there_are_refused_with_a_remedy(
    asked: str, there: Machine, said: str
) -> None:
    with pytest.raises(DeviceError, match=said) as raised:
        plan(config(devices=asked), there)
    assert raised.value.remedy
    assert raised.value.exit_code == 2


def test_what_another_training_holds_is_refused() -> None:
    with pytest.raises(DeviceError, match="held by another"):
        plan(config(devices="1,2"), machine(4), ["GPU-2abc"])
    with pytest.raises(DeviceError, match="1 of them not free"):
        plan(config(devices="all"), machine(4), ["GPU-2abc"])
    with pytest.raises(DeviceError, match="None of the 2 GPUs is free"):
        plan(config(), machine(2), ["GPU-0abc", "GPU-1abc"])


@pytest.mark.parametrize(
    ("cores", "batch", "processes"), [(8, 64, 2), (1, 64, 1), (8, 1, 1), (None, 64, 1)]
)
def test_auto_without_gpus_takes_two_processes_where_cores_and_samples_permit(
    cores: int | None, batch: int, processes: int
) -> None:
    made = plan(config(global_batch=batch), machine(0, cores))
    assert [device.kind for device in made.devices] == ["cpu"] * processes


@pytest.mark.parametrize(
    ("keys", "there", "mode", "backend"),
    [
        ({}, machine(1), Mode.NONE, "none"),
        ({}, machine(4), Mode.DISTRIBUTED, "nccl"),
        ({}, machine(4, kind="rocm"), Mode.DISTRIBUTED, "nccl"),
        ({"devices": "cpu:3"}, machine(4), Mode.DISTRIBUTED, "gloo"),
        ({"distributed": {"mode": "distributed"}}, machine(1), Mode.DISTRIBUTED, "nccl"),
        ({"distributed": {"mode": "none"}}, machine(4), Mode.NONE, "none"),
        ({"distributed": {"mode": "none"}}, machine(0), Mode.NONE, "none"),
        ({"distributed": {"backend": "gloo"}}, machine(2), Mode.DISTRIBUTED, "gloo"),
    ],
)
def test_mode_and_backend(keys: dict[str, Any], there: Machine, mode: Mode, backend: str) -> None:
    made = plan(config(**keys), there)
    assert (made.mode, made.backend) == (mode, backend)
    assert made.world_size == 1 if mode is Mode.NONE else True


@pytest.mark.parametrize(
    ("keys", "there", "said"),
    [
        ({"devices": "2", "distributed": {"mode": "none"}}, machine(4), "mode none"),
        ({"devices": "cpu:2", "distributed": {"backend": "nccl"}}, machine(4), "nccl"),
        ({"devices": "3", "distributed": {"shares": [32, 32]}}, machine(4), "2 entries for 3"),
        ({"devices": "4", "global_batch": 3}, machine(4), "only 3 would have work"),
    ],
)
def test_what_cannot_be_spread_is_refused(keys: dict[str, Any], there: Machine, said: str) -> None:
    with pytest.raises(BadInput, match=said) as raised:
        plan(config(**keys), there)
    assert raised.value.remedy


def test_auto_takes_no_more_devices_than_have_work() -> None:
    assert plan(config(global_batch=3), machine(8)).shares == (1, 1, 1)
    assert plan(grouped(global_batch=10), machine(8)).shares == (4, 6)
    assert plan(grouped(global_batch=3), machine(8)).shares == (3,)


def test_auto_takes_as_many_devices_as_there_are_shares() -> None:
    made = plan(config(distributed={"shares": [48, 16]}), machine(8))
    assert (made.world_size, made.shares) == (2, (48, 16))


def test_shares_that_will_be_measured_begin_equal_and_it_is_said() -> None:
    made = plan(config(distributed={"shares": "measured"}), machine(4))
    assert made.shares == (16, 16, 16, 16)
    assert "shares: equal to begin with" in made.reasons[-1]
    alone = plan(config(devices="1", distributed={"shares": "measured"}), machine(4))
    assert not any("shares" in reason for reason in alone.reasons)


def test_shares_that_are_not_whole_groups_are_refused_with_the_nearest_that_are() -> None:
    with pytest.raises(BadInput, match="whole groups of 4") as raised:
        plan(grouped(global_batch=12, distributed={"shares": [6, 6]}), machine(2))
    assert "[8, 4]" in raised.value.remedy


def test_too_many_ranks_are_told_the_numbers_that_work() -> None:
    with pytest.raises(BadInput, match="groups of 4") as raised:
        spread(grouped(global_batch=10), 3)
    assert "at most 2 devices" in raised.value.remedy
    assert "global_batch=12" in raised.value.remedy
    assert spread(grouped(global_batch=12), 3) == (4, 4, 4)
    assert spread(grouped(global_batch=10), 2) == (4, 6)


@pytest.mark.parametrize(
    ("keys", "micro_batch"),
    [
        ({}, 32),
        ({"micro_batch": 8}, 8),
        ({"micro_batch": 1000}, 32),
        ({"distributed": {"shares": [60, 4]}}, 60),
    ],
)
def test_the_micro_batch_is_at_most_the_largest_share(
    keys: dict[str, Any], micro_batch: int
) -> None:
    assert plan(config(**keys), machine(2)).micro_batch == micro_batch


def test_a_micro_batch_holds_at_least_one_group() -> None:
    assert plan(grouped(micro_batch=1), machine(2)).micro_batch == 4


def test_a_plan_is_json_and_pure() -> None:
    one, other = (plan(config(), machine(4)) for _ in range(2))
    assert one == other
    read = json.loads(json.dumps(one.as_dict()))
    assert (read["mode"], read["world_size"], read["shares"]) == ("distributed", 4, [16] * 4)
    assert read["devices"][3]["uuid"] == "GPU-3abc"
    assert len(read["reasons"]) == 2


def test_the_plan_of_the_real_machine_or_a_clear_refusal() -> None:
    there = Machine.probe()
    try:
        made = plan(config(), there)
    except DrumlineError as error:
        assert there.usable, error
    else:
        assert made.world_size >= 1
        assert sum(made.shares) == 64


@pytest.mark.parametrize(
    ("spread", "shares", "world_size", "backend"),
    [
        ({"mode": "sharded"}, (6, 6, 6, 6), 4, "nccl"),
        ({"mode": "hybrid", "mesh": {"shard": 2}}, (6, 6, 6, 6), 4, "nccl"),
        # Two ranks work on the same samples.
        ({"mode": "hybrid", "mesh": {"tensor": 2}}, (12, 12), 4, "nccl"),
        ({"mode": "hybrid", "mesh": {"pipeline": 2}}, (12, 12), 4, "nccl"),
        ({"mode": "hybrid", "mesh": {"tensor": 2, "pipeline": 2}}, (24,), 4, "nccl"),
        ({"mode": "hybrid", "mesh": {"pipeline": 2}, "shares": [16, 8]}, (16, 8), 4, "nccl"),
        ({"mode": "dataparallel"}, (24,), 1, "none"),
    ],
)
def test_shares_go_to_groups_of_ranks_and_one_process_takes_all(
    spread: dict[str, object], shares: tuple[int, ...], world_size: int, backend: str
) -> None:
    config = RunConfig(steps=1, global_batch=24, distributed=spread)
    made = plan(config, machine(4))
    assert (made.shares, made.world_size, made.backend) == (shares, world_size, backend)
    assert made.mode.value == spread["mode"]


def test_a_mesh_that_does_not_fit_the_devices_is_refused_before_a_run() -> None:
    spread = {"mode": "hybrid", "mesh": {"shard": 3}}
    with pytest.raises(BadInput, match="does not fit 4 ranks"):
        plan(RunConfig(steps=1, distributed=spread), machine(4))


@pytest.mark.parametrize(
    ("options", "keys", "size", "said"),
    [
        ({}, {"micro_batch": 8}, 8, "1f1b: 4 micro-batches of 8 samples"),
        ({}, {"micro_batch": 8}, 8, "a rank waits 3 / (4 + 3) = 43% of a step"),
        ({}, {}, 2, "1f1b: 16 micro-batches of 2 samples"),  # four for each rank
        ({"schedule": "interleaved_1f1b"}, {"micro_batch": 8}, 8, "3 / (2 x 4 + 3) = 27%"),
        ({"schedule": "zero_bubble"}, {"micro_batch": 8}, 8, "waits at most 3 / (4 + 3) = 43%"),
    ],
)
def test_a_plan_says_how_long_a_pipeline_waits(
    options: dict[str, object], keys: dict[str, int], size: int, said: str
) -> None:
    spread = {"mode": "hybrid", "mesh": {"pipeline": 4}, "pipeline": options}
    made = plan(RunConfig(steps=1, global_batch=32, distributed=spread, **keys), machine(4))
    assert (made.shares, made.micro_batch) == ((32,), size)
    assert said in made.reasons[-1]
