"""Which checkpoints are kept, and which of them is used."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoint_stores import flip, linear, newest_good, save, steps, store_of

from drumline.errors import BadInput, CheckpointError
from drumline.training.checkpoint import STATE


def test_keep_last_keeps_the_newest(tmp_path: Path) -> None:
    store = store_of(tmp_path, keep_last=2)
    for step in (1, 2, 3, 10):
        save(store, step)
    assert steps(store) == [10, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-0000000003",
        "step-0000000010",
    ]


@pytest.mark.parametrize(("goal", "best"), [("min", 2), ("max", 3)])
def test_keep_best_also_keeps_the_best(tmp_path: Path, goal: str, best: int) -> None:
    store = store_of(tmp_path, keep_last=1, keep_best={"metric": "loss", "goal": goal})
    for step, loss in enumerate([0.5, 0.1, 0.9, float("nan"), 0.3], start=1):
        save(store, step, loss=loss)
    save(store, 6)
    assert steps(store) == [6, best]
    found = store.best()
    assert found is not None
    assert found.step == best


def test_nan_is_never_the_best_and_the_first_of_equals_is(tmp_path: Path) -> None:
    store = store_of(tmp_path, keep_last=9, keep_best={"metric": "loss"})
    save(store, 1, loss=float("nan"))
    assert store.best() is None
    save(store, 2, loss=0.5)
    save(store, 3, loss=0.5)
    found = store.best()
    assert found is not None
    assert found.step == 2
    assert store_of(tmp_path).best() is None  # nobody asked for a best


def test_a_user_chooses_the_best_the_last_or_a_step(tmp_path: Path) -> None:
    store = store_of(tmp_path, keep_last=9, keep_best={"metric": "loss"})
    with pytest.raises(BadInput, match="no checkpoint last"):
        store.choose("last")
    for step, loss in enumerate([0.5, 0.1, 0.9], start=1):
        save(store, step, loss=loss)
    assert [store.choose(which).step for which in ("best", "last", "1")] == [2, 3, 1]
    assert store_of(tmp_path).choose("best").step == 3  # no metric was named
    with pytest.raises(BadInput, match="no checkpoint 7") as raised:
        store.choose("7")
    assert "3, 2, 1" in raised.value.remedy
    flip(tmp_path / "step-0000000001" / STATE)
    with pytest.raises(CheckpointError, match="damaged"):
        store.choose("1")


def test_a_damaged_newer_one_does_not_push_out_the_one_just_written(tmp_path: Path) -> None:
    store = store_of(tmp_path, keep_last=1)
    flip(save(store, 50).path / STATE)
    save(store, 45)
    found = newest_good(store)
    assert found is not None
    assert found.step == 45


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    save(store, 1)
    store.save(1, linear(9), {"step": "again"}, {})
    (found,) = store.all()
    found.verify()
    assert found.load_state() == {"step": "again"}
