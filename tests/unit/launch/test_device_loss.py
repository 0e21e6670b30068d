"""What a plan's devices have lost, and the plan for those that are left."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from drumline.config import Mode, RunConfig
from drumline.config.load import override
from drumline.errors import DeviceError
from drumline.hardware import Machine
from drumline.launch import loss as module
from drumline.launch.loss import Loss, find_loss
from drumline.planning import Plan, plan

MACHINE = Machine.probe(simulate="8xH100")


def config(**keys: Any) -> RunConfig:
    return RunConfig.model_validate({"steps": 9, "global_batch": 96, "devices": "4", **keys})


def without(*indices: int, forgotten: bool = False) -> Machine:
    """The machine after it lost devices; the driver may have forgotten them."""
    devices = tuple(d.as_lost("off the bus") if d.index in indices else d for d in MACHINE.devices)
    if forgotten:
        devices = tuple(d for d in devices if not d.lost)
    return replace(MACHINE, devices=devices)


def found(asked: RunConfig, machine: Machine, micro_batch: int = 24) -> tuple[Plan, Loss]:
    made = plan(asked, MACHINE)
    loss = find_loss(asked, made, micro_batch, lambda: machine)
    assert loss is not None
    return made, loss


@pytest.mark.parametrize("forgotten", [False, True])
def test_the_others_do_its_work_in_forwards_of_the_same_size(forgotten: bool) -> None:
    made, loss = found(config(), without(1, forgotten=forgotten))
    assert loss.plan is not None
    gone = made.devices[1]
    assert loss.plan.devices == tuple(d for d in made.devices if d != gone)
    assert loss.plan.shares == (32, 32, 32)
    assert loss.plan.micro_batch == 24
    assert dict(loss.overrides) == {"micro_batch": "24"}
    (said,) = loss.lost
    assert said.startswith(f"GPU 1 ({gone.name}, {gone.uuid}) is lost: ")
    assert ("off the bus" in said) != forgotten


def test_all_there_is_no_loss() -> None:
    asked = config()
    made = plan(asked, MACHINE)
    assert find_loss(asked, made, 24, lambda: MACHINE) is None
    others = without(*(d.index for d in MACHINE.devices if d.uuid not in
                       {device.uuid for device in made.devices}))  # fmt: skip
    assert find_loss(asked, made, 24, lambda: others) is None


def test_cpu_processes_cannot_be_lost_and_nobody_looks() -> None:
    asked = config(devices="cpu:4")
    made = plan(asked, MACHINE)
    assert find_loss(asked, made, 24, lambda: pytest.fail("looked")) is None


def test_of_two_devices_one_goes_on_alone() -> None:
    _, loss = found(config(devices="2"), without(0))
    assert loss.plan is not None
    assert (loss.plan.mode, loss.plan.world_size, loss.plan.shares) == (Mode.NONE, 1, (96,))


def test_what_was_cut_because_no_replica_fits_stays_cut() -> None:
    asked = config()
    made = replace(plan(asked, MACHINE), mode=Mode.SHARDED)  # as where memory was predicted
    loss = find_loss(asked, made, 24, lambda: without(1))
    assert loss is not None and loss.plan is not None
    assert (loss.plan.mode, loss.plan.world_size) == (Mode.SHARDED, 3)
    assert dict(loss.overrides) == {"micro_batch": "24", "distributed.mode": "sharded"}


def test_a_mesh_goes_on_with_as_many_as_it_has_places_for() -> None:
    mesh = {"mode": "hybrid", "mesh": {"data": -1, "shard": 2}}
    _, loss = found(config(devices="6", distributed=mesh), without(5))
    assert loss.plan is not None
    assert len(loss.plan.devices) == 4
    assert loss.plan.shares == (24, 24, 24, 24)


def test_a_device_without_a_place_stands_in_at_the_next_loss_unless_it_is_gone_too() -> None:
    asked = config(devices="6", distributed={"mode": "hybrid", "mesh": {"data": -1, "shard": 2}})
    made, first = found(asked, without(5))
    assert first.plan is not None
    assert first.plan.devices + first.spare == tuple(d for d in made.devices if d.index != 5)
    waits = first.spare[0].index
    assert waits is not None
    # Gone alone it is missed by nobody.
    assert find_loss(asked, first.plan, 24, lambda: without(5, waits), first) is None
    second = find_loss(asked, first.plan, 24, lambda: without(5, 1), first)
    assert second is not None and second.plan is not None
    assert {d.index for d in second.plan.devices} == {d.index for d in made.devices} - {5, 1}
    assert (second.plan.shares, second.spare) == ((24, 24, 24, 24), ())
    both = find_loss(asked, first.plan, 24, lambda: without(5, 1, waits), first)
    assert both is not None and both.plan is not None
    assert (both.plan.world_size, len(both.spare), len(both.lost)) == (2, 1, 2)


def test_fixed_shares_keep_the_proportion_that_was_asked_for_over_all_losses() -> None:
    asked = config(distributed={"shares": [48, 24, 16, 8]})
    _, first = found(asked, without(2))
    assert first.plan is not None
    keys = [f"{key}={value}" for key, value in first.overrides]
    second = find_loss(override(asked, keys), first.plan, 24, lambda: without(2, 1), first)
    assert second is not None and second.plan is not None
    # 96 x 48/56, 8/56: 82.3, 13.7. Of the 58 and 9 in between it would be 83.1 and 12.9.
    assert second.plan.shares == (82, 14)


def test_a_mesh_of_fixed_size_cannot() -> None:
    mesh = {"mode": "hybrid", "mesh": {"data": 2, "shard": 2}}
    _, loss = found(config(distributed=mesh), without(2))
    assert loss.plan is None
    assert "does not fit 3 ranks" in loss.refused


def test_fixed_shares_keep_their_proportion() -> None:
    _, loss = found(config(distributed={"shares": [48, 24, 16, 8]}), without(2))
    assert loss.plan is not None
    assert loss.plan.shares == (58, 29, 9)  # 96 x 48/80, 24/80, 8/80: 57.6, 28.8, 9.6
    assert dict(loss.overrides)["distributed.shares"] == "[58,29,9]"


def test_without_a_device_there_is_nothing_to_go_on_with() -> None:
    _, loss = found(config(devices="1"), without(0))
    assert loss.plan is None
    assert loss.refused == "no device is left"


def test_a_probe_that_breaks_or_hangs_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = config()
    made = plan(asked, MACHINE)

    def breaks() -> Machine:
        raise DeviceError("no driver")

    assert find_loss(asked, made, 24, breaks) is None
    monkeypatch.setattr(module, "PROBE_S", 0.0)

    freed = threading.Event()

    def hangs() -> Machine:
        freed.wait()
        return without(0)

    assert find_loss(asked, made, 24, hangs) is None
    freed.set()
