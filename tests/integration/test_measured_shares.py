"""Shares in proportion to measured speed, over real ranks on clocks that only work moves on.

One launch does all cases: a rank that takes twice as long for a sample, ranks that change their
speeds at step 20, and one that is slow at reading. Each trains on 66 samples in steps of 16: an
epoch is five steps, the last of 2 samples.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from spread_worlds import Case, Trained, case, largest_difference, launch, same_bits

from drumline.events import read_events

EXACT = 1e-12
EPOCH_STEPS = 5
STEPS = 50
TWICE = [{"sample_s": [1.0]}, {"sample_s": [2.0]}]
TURNING = [{"sample_s": [1.0, 2.0], "turn": 20}, {"sample_s": [2.0, 1.0], "turn": 20}]
READING = [{"sample_s": [1.0]}, {"sample_s": [1.0], "reading_s": 3.0}]
EQUAL, TWO_TO_ONE, ONE_TO_TWO = [8, 8], [11, 5], [5, 11]  # 16 samples by the largest remainder


def ways(folder: Path) -> list[Case]:
    def way(name: str, clock: list[dict[str, Any]], spread: dict[str, Any], **keys: Any) -> Case:
        keys = {"logging": {"every_steps": EPOCH_STEPS}, "steps": STEPS, **keys}
        return case(
            folder, name, "lstm", {"mode": "distributed", **spread}, case_clock=clock, **keys
        )

    measured = {"shares": "measured"}
    often = {**measured, "balance": {"every_steps": 8}}
    at_once = {**measured, "balance": {"every_steps": 8, "change_at": "once"}}
    return [
        way("equal", TWICE, {}),
        way("twice", TWICE, measured, micro_batch=None),
        way("in_threes", TWICE, measured, micro_batch=3),
        way("turning", TURNING, often),
        way("at_once", TURNING, at_once),
        way("workers", TURNING, at_once, data_workers=1),
        way("resumed", TWICE, measured, steps=12),
        way("resumed", TWICE, measured),
        way("reading", READING, {"balance": {"every_steps": 8}}),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shares")


@pytest.fixture(scope="module")
def trained(folder: Path) -> dict[str, Trained]:
    return launch(2, ways(folder), folder)


@pytest.fixture(scope="module")
def alone(folder: Path) -> Trained:
    one = case(folder, "alone", "lstm", {"mode": "none"}, steps=STEPS)
    return launch(1, [one], folder)["alone"]


def told(run: Trained, kind: str, *fields: str) -> list[Any]:
    """One field of each event of a kind, or several."""
    events = [event for event in read_events(run.folder / "events.jsonl") if event["kind"] == kind]
    if len(fields) == 1:
        return [event[fields[0]] for event in events]
    return [tuple(event[field] for field in fields) for event in events]


@pytest.mark.parametrize(
    "way", ["equal", "twice", "in_threes", "turning", "at_once", "workers", "resumed", "reading"]
)
def test_whatever_the_shares_the_weights_are_those_of_one_process(
    trained: dict[str, Trained], alone: Trained, way: str
) -> None:
    assert largest_difference(trained[way].weights, alone.weights) <= EXACT


def test_being_timed_changes_no_bit(trained: dict[str, Trained]) -> None:
    """Both have equal shares; one is timed in five of every eight steps, the other never."""
    assert told(trained["equal"], "rank_speeds", "step") == []
    assert same_bits(trained["reading"].weights, trained["equal"].weights)


def test_the_calibration_finds_a_rank_of_half_speed_and_then_leaves_it(
    trained: dict[str, Trained],
) -> None:
    """Two careful steps and five timed; in the new shares one step passes before the next five."""
    run = trained["twice"]
    assert told(run, "shares_changed", "step", "old", "new") == [(7, EQUAL, TWO_TO_ONE)]
    assert told(run, "shares_changed", "gain") == [pytest.approx(1 - 11 / 16)]
    assert told(run, "rank_speeds", "step", "samples_per_s") == [(7, [1.0, 0.5]), (13, [1.0, 0.5])]


def test_a_larger_share_is_cut_into_micro_batches_as_large_as_before(
    trained: dict[str, Trained],
) -> None:
    """Unless the config says less, 8: what every rank held in equal shares."""
    assert trained["twice"].found["largest_forward"] == [8, 8]
    assert trained["in_threes"].found["largest_forward"] == [3, 3]


def test_after_the_start_shares_change_where_an_epoch_begins(trained: dict[str, Trained]) -> None:
    """Measured at step 29, the change waits for step 30."""
    changes = told(trained["turning"], "shares_changed", "step", "new")
    assert changes == [(7, TWO_TO_ONE), (30, ONE_TO_TWO)]
    assert 30 % EPOCH_STEPS == 0
    (_, reason) = told(trained["turning"], "shares_changed", "reason")
    assert "step 29" in reason
    assert "epoch" in reason


@pytest.mark.parametrize("way", ["at_once", "workers"])
def test_or_at_once_where_the_config_says_so(trained: dict[str, Trained], way: str) -> None:
    changes = told(trained[way], "shares_changed", "step", "new")
    assert changes == [(7, TWO_TO_ONE), (29, ONE_TO_TWO)]


def test_a_run_that_is_resumed_measures_again(trained: dict[str, Trained]) -> None:
    changes = told(trained["resumed"], "shares_changed", "step", "old", "new")
    assert changes == [(7, EQUAL, TWO_TO_ONE), (19, EQUAL, TWO_TO_ONE)]


def test_a_rank_that_is_slow_twice_is_named_once_with_the_cause(
    trained: dict[str, Trained],
) -> None:
    """A sample takes rank 1 three seconds to read and one to compute, rank 0 one in all."""
    run = trained["reading"]
    (named,) = told(run, "warning", "code", "rank", "step", "part", "causes")
    assert named[:4] == ("slow_rank", 1, 16, 0.25)
    (cause,) = named[4]
    assert "waits for data 75%" in cause
    assert set(told(run, "rank_speeds", "step")) == {8, 16, 24, 32, 40, 48}
    assert all(reading == [0.0, 0.75] for reading in told(run, "rank_speeds", "reading"))
    assert told(run, "shares_changed", "new") == []


def test_a_rank_is_named_again_only_after_it_had_recovered(trained: dict[str, Trained]) -> None:
    assert told(trained["turning"], "warning", "rank", "step") == [(1, 13), (0, 37)]
