from typing import Any

import pytest

from drumline.cli.summary import Summary


def event(kind: str, t: float = 0.0, **fields: Any) -> dict[str, Any]:
    return {"v": 1, "t": t, "kind": kind, "attempt": 0, "rank": 0, **fields}


def test_the_time_left_is_the_steps_left_over_the_speed() -> None:
    summary = Summary()
    summary.feed(event("step", t=100 + 2 * i, step=10 * i, steps=1000) for i in range(1, 6))
    # 40 steps in 8 s: 5 a second; 950 are left.
    assert summary.per_second() == pytest.approx(5.0)
    assert summary.seconds_left() == pytest.approx(190.0)


def test_the_speed_is_not_measured_across_a_restart() -> None:
    summary = Summary()
    summary.feed([event("step", t=0, step=90, steps=100), event("attempt_started", t=50)])
    summary.feed([event("step", t=60, step=10, steps=100)])
    assert summary.per_second() is None
    summary.feed([event("step", t=61, step=20, steps=100)])
    assert summary.per_second() == pytest.approx(10.0)


def test_steps_that_a_restart_undid_are_not_in_the_curves() -> None:
    summary = Summary()
    losses = [(10, 3.0), (20, 2.0), (30, 9.0), (20, 2.5)]
    summary.feed(event("step", step=step, loss=loss) for step, loss in losses)
    assert summary.curves["loss"] == {10: 3.0, 20: 2.5}


def test_progress_has_its_own_speed() -> None:
    summary = Summary()
    progress = {"what": "activations", "total": 1000, "unit": "tokens"}
    summary.feed(event("progress", t=i, done=100 * i, **progress) for i in range(4))
    assert summary.per_second() == pytest.approx(100.0)
    assert summary.seconds_left() == pytest.approx(7.0)


def test_metrics_of_the_end_win_over_evaluation_over_step() -> None:
    summary = Summary()
    summary.feed([event("step", step=1, loss=1.0, metrics={"a": 1, "b": 1, "c": 1})])
    summary.feed([event("evaluation", step=1, metrics={"b": 2, "c": 2})])
    summary.feed([event("run_ended", status="done", metrics={"c": 3})])
    assert summary.metrics == {"loss": 1.0, "a": 1, "b": 2, "c": 3}


def test_events_without_their_fields_do_no_harm() -> None:
    summary = Summary()
    kinds = "run_started attempt_started step step_skipped evaluation checkpoint phase progress"
    summary.feed({"v": 1, "kind": kind} for kind in [*kinds.split(), "run_ended", "no_such", None])
    assert summary.step == 0
    assert summary.seconds_left() is None


def test_own_speeds_are_those_of_the_present_attempt() -> None:
    summary = Summary()
    summary.feed([event("rank_speeds", samples_per_s=[4.0, 2.0])])
    assert summary.own_speeds == [4.0, 2.0]
    summary.feed([event("rank_speeds", samples_per_s=[4.0, "nan?"])])
    assert summary.own_speeds == []
    summary.feed([event("rank_speeds", samples_per_s=[4.0, 3.0]), event("run_started", step=3)])
    assert summary.own_speeds == []
