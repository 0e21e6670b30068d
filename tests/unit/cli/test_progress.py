import io
from typing import Any

import pytest
from rich.console import Console

from drumline.cli.progress import INTERVAL_S, ProgressView


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def event(kind: str, t: float = 0.0, **fields: Any) -> dict[str, Any]:
    return {"v": 1, "t": t, "kind": kind, "attempt": 0, "rank": 0, **fields}


def step(number: int, t: float) -> dict[str, Any]:
    return event("step", t=t, step=number, steps=200, loss=0.5, metrics={"fvu": 0.25}, lr=1e-3)


def plain() -> tuple[ProgressView, io.StringIO, Clock]:
    stream, clock = io.StringIO(), Clock()
    return ProgressView(Console(file=stream, width=100), clock=clock), stream, clock


def test_without_a_terminal_the_state_is_a_line_every_few_seconds_at_most() -> None:
    view, stream, clock = plain()
    with view:
        for number in range(1, 101):
            clock.now = 1000.0 + 0.25 * number
            view.feed([step(number, clock.now)])
    lines = stream.getvalue().splitlines()
    # 100 steps within 24.75 s.
    assert len(lines) == 1 + int(24.75 // INTERVAL_S)
    assert lines[1].startswith("step 21/200  10%  loss 0.5  fvu 0.25")
    # 179 steps are left, at four a second.
    assert lines[1].endswith("45 s left")
    assert "\x1b" not in stream.getvalue()


def test_warnings_and_failures_are_never_held_back() -> None:
    view, stream, _ = plain()
    with view:
        view.feed([step(1, 0.0)])
        view.feed([event("warning", message=f"no. {i} [/red]") for i in range(3)])
        view.feed([event("rank_failed", message="it died", remedy="Look.") | {"rank": 2}])
    text = stream.getvalue()
    assert [f"! no. {i} [/red]" in text for i in range(3)] == [True] * 3
    assert "✗ Rank 2 failed: it died. Look." in text


def test_many_skipped_steps_do_not_flood_the_log() -> None:
    view, stream, clock = plain()
    with view:
        for number in range(100):
            view.feed([event("step_skipped", step=number, reason="inf", loss_scale=2.0)])
        clock.now += INTERVAL_S
        view.feed([event("step_skipped", step=100, reason="inf", loss_scale=1.0)])
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[1] == "! Step 100 skipped: inf; loss scale now 1 (101 skipped so far)"


def test_quiet_prints_nothing() -> None:
    stream = io.StringIO()
    with ProgressView(Console(file=stream, force_terminal=True), quiet=True) as view:
        view.feed([event("warning", message="x"), step(1, 0.0), event("run_ended", status="done")])
        view.line("from a rank")
    assert stream.getvalue() == ""


@pytest.mark.parametrize("latest", ["step", "progress", "phase", None])
def test_a_terminal_shows_the_bar_below_the_lines(latest: str | None) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100, color_system=None)
    events = [event("warning", message="mind the gap")]
    if latest == "step":
        events += [step(40, 10.0), step(50, 12.0)]
    elif latest == "progress":
        events += [event("progress", what="reading", done=50, total=200, unit="tokens")]
    elif latest == "phase":
        events += [event("phase", name="load", message="Loading the model")]
    with ProgressView(console) as view:
        view.feed(events)
    text = stream.getvalue()
    expected = {
        "step": "step 50/200",
        "progress": "50 of 200 tokens",
        "phase": "Loading the model",
        None: "Starting",
    }
    assert expected[latest] in text
    assert text.index("! mind the gap") < text.rindex(expected[latest])
    if latest == "step":
        # 10 steps in 2 s, 150 are left.
        assert "30 s left" in text


def test_what_a_rank_prints_is_not_read_as_markup() -> None:
    view, stream, _ = plain()
    with view:
        view.line("\x1b[31mloss[0] = [/bold] 3\x1b[0m")
    assert stream.getvalue() == "loss[0] = [/bold] 3\n"


def test_new_shares_are_a_line_and_the_slowest_rank_is_told_by_its_own_speed() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=200, color_system=None)
    changed = {"old": [48, 48], "new": [64, 32], "gain": 1 / 3, "reason": "calibration"}
    with ProgressView(console) as view:
        view.feed([event("rank_speeds", step=7, samples_per_s=[2000.0, 1000.0])])
        view.feed([event("shares_changed", step=7, rank_samples_per_s=[2000.0, 1000.0], **changed)])
        view.feed([step(50, 12.0) | {"rank_samples_per_s": [700.0, 700.0]}])
    text = stream.getvalue()
    assert "Shares from step 7 on: 64 + 32 samples instead of 48 + 48" in text
    assert "33% shorter" in text
    assert "2,000 + 1,000 samples/s; calibration" in text
    assert "rank 1 is 50% slower" in text
