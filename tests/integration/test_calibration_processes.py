"""A calibration with real processes: what it finds is whole and sane; how fast is not asked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from drumline.bench.calibration import calibrate
from drumline.config import RunConfig, parse_config
from drumline.errors import LaunchError
from drumline.hardware import Host, Machine
from drumline.planning.estimate import estimate
from drumline.planning.prices import PriceList

WIDTH, LATENTS = 16, 64
PARAMETERS = 2 * WIDTH * LATENTS + LATENTS + WIDTH
MACHINE = Machine(Host("here", cpu_usable=2))


def config(folder: Path, rows: np.ndarray) -> RunConfig:
    np.save(folder / "rows.npy", rows)
    task = {"name": "sae", "activations": str(folder / "rows.npy"), "latents": LATENTS, "k": 4}
    task |= {"evaluation": {"samples": 100}}
    return parse_config(
        {"epochs": 2, "global_batch": 64, "micro_batch": 16, "devices": "cpu", "task": task}
    )


def test_steps_and_links_are_timed_on_real_processes(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((1000, WIDTH)).astype(np.float32)
    given = config(tmp_path, rows)
    speed = calibrate(given, [1, 2, 4], MACHINE, budget_s=0.05)
    timed = speed.calibration
    assert [point.samples for point in timed.points("none")] == [64]
    assert [point.samples for point in timed.points("distributed")] == [16, 32]
    for point in (*timed.none, *timed.distributed):
        assert point.data_s > 0
        assert point.compute_s is not None and point.compute_s > 0
        assert point.remaining_s == (0.0,)  # all four gradients travel together
    assert timed.steps == 2 * 15  # 900 rows to train on, in steps of 64 with a short one at the end
    assert timed.exchange.total_bytes == 4 * PARAMETERS
    assert timed.exchange.blocking_bytes[0] == 8 * (2 + 64)
    assert [entry.world_size for entry in speed.profile.all_reduce] == [2]  # two cores: no 4
    assert speed.controls[2].every_steps == given.logging.every_steps
    assert timed.beside[2].alone.samples == timed.beside[2].beside.samples == 32
    assert timed.beside[4].beside.step_s == pytest.approx(2 * timed.beside[2].beside.step_s)
    assert list(timed.whole) == [2]
    found = estimate(given, [1, 2, 4], speed, PriceList())
    gathered = speed.controls[2].gather_s / given.logging.every_steps
    assert found.rows[1].step_s == pytest.approx(timed.whole[2].step_s + gathered)
    assert all(row.step_s > 0 for row in found.rows)
    assert found.rows[0].step_s == pytest.approx(timed.points("none")[-1].step_s)
    assert found.notes == ("links on 4 ranks taken as on 2",)


@pytest.mark.gpu
def test_steps_and_links_are_timed_on_gpus(tmp_path: Path) -> None:
    machine = Machine.probe()
    rows = np.random.default_rng(0).standard_normal((1000, WIDTH)).astype(np.float32)
    given = config(tmp_path, rows).model_copy(update={"devices": "auto"})
    there = min(2, len(machine.usable))
    speed = calibrate(given, [1, there], machine, budget_s=0.2)
    assert [point.samples for point in speed.calibration.none] == [64]
    for point in (*speed.calibration.none, *speed.calibration.distributed):
        assert len(point.remaining_s) == 1
        assert 0 <= max(point.remaining_s) < point.step_s
    assert set(speed.calibration.beside) == {there} - {1}
    assert speed.profile.links(2)[0] is not None or there == 1


def test_steps_that_fail_are_a_clear_error(tmp_path: Path) -> None:
    rows = np.full((1000, WIDTH), np.nan, dtype=np.float32)
    with pytest.raises(LaunchError, match="The calibration failed"):
        calibrate(config(tmp_path, rows), [1], MACHINE, budget_s=0.05)
