"""Mode `auto` by predicted step time."""

from __future__ import annotations

import json
from typing import Any

import pytest
from planning.speed_by_hand import link, profile, speed

from drumline.config import Mode, RunConfig, parse_config
from drumline.errors import BadInput
from drumline.hardware import Device, Host, Machine
from drumline.planning import Plan, plan
from drumline.planning.profiled_speed import ProfiledSpeed

SLOW_LINKS = profile(all_reduce=[link(size, bus=1e7) for size in (2, 4, 8)])


def machine(gpus: int) -> Machine:
    devices = [Device(f"GPU-{index}", index, "cuda", name="Abacus") for index in range(gpus)]
    return Machine(Host("here", cpu_usable=8), tuple(devices))


def config(**keys: Any) -> RunConfig:
    return parse_config({"steps": 1, "global_batch": 1024, **keys})


def planned(gpus: int, by: ProfiledSpeed | None, **keys: Any) -> Plan:
    return plan(config(**keys), machine(gpus), speed=by)


def test_all_devices_are_taken_where_they_are_worth_it() -> None:
    made = planned(8, speed())
    assert (made.mode, made.world_size, made.shares) == (Mode.DISTRIBUTED, 8, (128,) * 8)
    assert "a step is predicted, against" in made.reasons[-1]


def test_one_device_is_taken_where_links_are_slower_than_work() -> None:
    # 1024 GFLOP take 1 s on one device; 40 MB of gradients at 10 MB/s take 4 s and more.
    made = planned(8, speed(profile=SLOW_LINKS))
    assert (made.mode, made.backend, made.shares) == (Mode.NONE, "none", (1024,))
    assert made.micro_batch == 1024


def test_devices_that_were_asked_for_are_kept() -> None:
    made = planned(8, speed(profile=SLOW_LINKS), devices="4")
    assert (made.mode, made.world_size) == (Mode.DISTRIBUTED, 4)
    notes = {(c.mode, c.devices): c.note for c in made.candidates}
    assert notes["none", 1] == "4 devices were asked for"


def test_a_mode_that_was_asked_for_is_kept() -> None:
    made = planned(4, speed(profile=SLOW_LINKS), distributed={"mode": "distributed"})
    assert (made.mode, made.world_size) == (Mode.DISTRIBUTED, 4)
    assert made.reasons[-1] == "mode distributed: as the config says"


def test_candidates_hold_every_mode_with_its_time_or_why_not() -> None:
    shown = [(c.mode, c.devices, c.step_s is None) for c in planned(4, speed()).candidates]
    assert shown == [
        ("none", 1, False),
        ("distributed", 2, False),
        ("distributed", 4, False),
        ("dataparallel", 4, False),
        ("sharded", 4, False),
        ("hybrid", 4, True),
    ]


@pytest.mark.parametrize(
    ("by", "said"),
    [
        (None, "it is not known: their speed"),
        (speed(profile=profile(launch_s=None)), "it is not known: the time to launch a kernel"),
    ],
)
def test_without_a_whole_profile_their_number_decides(by: ProfiledSpeed | None, said: str) -> None:
    made = planned(2, by)
    assert (made.mode, made.world_size) == (Mode.DISTRIBUTED, 2)
    assert said in made.reasons[-1]


def test_a_batch_smaller_than_the_devices_is_refused_as_ever() -> None:
    with pytest.raises(BadInput, match="global_batch 3 cannot be shared by 4 devices"):
        planned(4, speed(), global_batch=3, devices="4")


def test_the_plan_with_candidates_is_plain_data() -> None:
    read = json.loads(json.dumps(planned(2, speed()).as_dict()))
    assert read["candidates"][0].keys() == {
        "mode",
        "devices",
        "shares",
        "step_s",
        "parts",
        "selectable",
        "note",
    }
