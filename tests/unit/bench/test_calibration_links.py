"""From measured times to links, and whose links stand in for devices that are not here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planning.speed_by_hand import MB, link, profile

from drumline.bench import calibration
from drumline.bench.calibration import calibrate, links_of, with_stand_ins
from drumline.bench.step_timing import steady
from drumline.config import parse_config
from drumline.errors import BadInput, DeviceError
from drumline.hardware import Device, Host, Machine
from drumline.hardware.device_locks import DeviceLocks, holders, lock_folder
from drumline.launch import LaunchRequest
from drumline.planning.cost_model import all_reduce_s

GRADIENTS = (30 * MB, 10 * MB)


def measured(**times: float) -> dict[str, Any]:
    return {"all_reduce": {"4": times}}


def test_the_links_give_back_the_measured_time_of_the_gradients() -> None:
    (found,) = links_of(measured(latency_s=1e-3, gradients_s=0.062), GRADIENTS, "Abacus")
    assert (found.world_size, found.latency_s) == (4, 1e-3)
    assert found.bus_bytes_per_s == pytest.approx(1e9)  # 2 x 3/4 x 40 MB in 62 - 2 x 1 ms
    assert all_reduce_s(found, 4, GRADIENTS) == pytest.approx(0.062)


def test_a_latency_above_the_time_of_the_gradients_is_noise() -> None:
    (found,) = links_of(measured(latency_s=1.0, gradients_s=0.060), GRADIENTS, "Abacus")
    assert all_reduce_s(found, 4, GRADIENTS) == pytest.approx(0.060)


def test_measured_links_come_before_a_profile_and_long_before_a_datasheet() -> None:
    here = [link(2)]
    known = profile(all_reduce=[link(2, bus=5.0), link(4), link(8, latency_s=None)])
    assert with_stand_ins(here, known) == [link(2), link(4)]
    assert with_stand_ins([], known) == known.all_reduce
    assert with_stand_ins(here, None) == here


def test_rare_hiccups_do_not_count() -> None:
    assert steady([2.0] * 8 + [100.0] + [2.0] * 23) == pytest.approx(2.0)


def test_long_and_short_steps_that_alternate_count_as_their_mean() -> None:
    assert steady([1.0, 5.0] * 16) == pytest.approx(3.0)
    assert steady([1.0, 5.0, 1.0, 5.0, 1.0, 5.0]) == pytest.approx(3.0)


def test_a_few_steps_are_enough() -> None:
    assert steady([2.0]) == 2.0
    assert steady([1.0, 2.0, 9.0]) == 2.0


def test_simulated_devices_cannot_be_timed(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.zeros((40, 8), dtype=np.float32))
    device = Device("SIM-1", 0, "simulated-cuda", name="Abacus (simulated)", simulated=True)
    task = {"name": "sae", "activations": str(tmp_path / "rows.npy")}
    config = parse_config({"steps": 1, "global_batch": 8, "task": task})
    with pytest.raises(BadInput, match="nothing can be timed on it"):
        calibrate(config, [1], Machine(Host("here"), (device,)))


def test_only_devices_that_nobody_holds_are_timed(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.zeros((40, 8), dtype=np.float32))
    task = {"name": "sae", "activations": str(tmp_path / "rows.npy")}
    config = parse_config({"steps": 1, "global_batch": 8, "task": task})
    there = Machine.probe(simulate="1xH100+1xL4")
    held = {there.devices[0].uuid: "process 4711 of ann (/runs/x)"}
    with pytest.raises(BadInput, match=r"L4 .* is simulated"):  # the one it would have timed
        calibrate(config, [1], there, held)
    named = config.model_copy(update={"devices": "0,"})
    with pytest.raises(DeviceError, match=r"is held by process 4711 of ann \(/runs/x\)"):
        calibrate(named, [1], there, held)
    with pytest.raises(DeviceError, match=r"H100.* held by .* L4.* held by process 12"):
        calibrate(config, [1], there, held | {there.devices[1].uuid: "process 12"})


def test_a_config_without_a_task_cannot_be_timed() -> None:
    with pytest.raises(BadInput, match="names no task"):
        calibrate(parse_config({"steps": 1}), [1], Machine(Host("here")))


class Launched(Exception):
    """Thrown where ranks would be started."""


def test_devices_are_held_while_they_are_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRUMLINE_LOCK_FOLDER", str(tmp_path / "locks"))
    np.save(tmp_path / "rows.npy", np.zeros((40, 8), dtype=np.float32))
    task = {"name": "sae", "activations": str(tmp_path / "rows.npy")}
    config = parse_config({"steps": 1, "global_batch": 8, "task": task})
    there = Machine(Host("here"), (Device("GPU-7", 0, "cuda", name="Abacus"),))

    def refuse(request: LaunchRequest, _: object) -> None:
        (holder,) = holders(lock_folder(), ["GPU-7"]).values()
        assert holder.pid == os.getpid()
        assert [path.name for path in request.locks] == ["GPU-7.lock"]  # ranks hold it, too
        raise Launched

    monkeypatch.setattr(calibration, "launch", refuse)
    with pytest.raises(Launched):
        calibrate(config, [1], there)
    assert not holders(lock_folder(), ["GPU-7"])
    with DeviceLocks(lock_folder(), ["GPU-7"]) as other:
        other.tell(Path("/runs/x"))
        with pytest.raises(DeviceError, match=rf"GPU-7 is held by process {os.getpid()} .*/runs/x"):
            calibrate(config, [1], there)
