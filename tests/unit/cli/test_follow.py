import io
from pathlib import Path
from typing import Any

from rich.console import Console

from drumline.cli.follow import Follower
from drumline.cli.progress import ProgressView
from drumline.events import EventLog


class Recorder:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def feed(self, events: list[dict[str, Any]]) -> None:
        self.events += events

    def close(self) -> None:
        self.closed_after = len(self.events)


class Broken:
    def feed(self, events: list[dict[str, Any]]) -> None:
        raise OSError("the server is gone")

    def close(self) -> None:
        pass


def view() -> tuple[ProgressView, io.StringIO]:
    stream = io.StringIO()
    return ProgressView(Console(file=stream, width=100)), stream


def test_every_event_is_read_once_and_those_of_earlier_launches_not_at_all(tmp_path: Path) -> None:
    log, recorder = EventLog(tmp_path / "events.jsonl"), Recorder()
    log.emit("warning", message="old")
    with Follower(view()[0]) as follower:
        follower.watch(log.path, [recorder])
        for number in range(500):
            log.emit("step", step=number)
    assert [event["step"] for event in recorder.events] == list(range(500))
    assert recorder.closed_after == 500


def test_a_reader_that_breaks_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    log, recorder = EventLog(tmp_path / "events.jsonl"), Recorder()
    shown, stream = view()
    with Follower(shown) as follower:
        follower.watch(log.path, [Broken(), recorder])
        log.emit("warning", message="first")
        log.emit("warning", message="second")
    assert [event["message"] for event in recorder.events] == ["first", "second"]
    assert stream.getvalue().count("Broken broke") == 1
    assert "the server is gone" in stream.getvalue()


def test_a_log_that_appears_later_is_read_from_its_start(tmp_path: Path) -> None:
    recorder = Recorder()
    with Follower(view()[0]) as follower:
        follower.watch(tmp_path / "events.jsonl", [recorder])
        EventLog(tmp_path / "events.jsonl").emit("step", step=1)
    assert [event["step"] for event in recorder.events] == [1]
