"""The event log: its schema, what survives, and what is counted as lost."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from small_disk import fill, small_disk

from drumline.events import LAUNCHER, SCHEMA_VERSION, EventLog, EventReader, read_events

WRITER = """
import sys
from pathlib import Path
from drumline.events import EventLog
log = EventLog(Path(sys.argv[1]), rank=int(sys.argv[2]))
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[3])):
    log.emit("tick", number=number, filling="x" * (number * 37 % 9000))
"""


def strict(line: str) -> dict[str, object]:
    """Parse a line as JSON that knows no NaN."""

    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is not JSON")

    return json.loads(line, parse_constant=refuse)  # type: ignore[no-any-return]


def test_every_line_has_the_schema(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl", attempt=2, rank=1)
    before = time.time()
    log.emit("step", step=7, loss=0.5)
    after = time.time()
    (line,) = log.path.read_text().splitlines()
    event = strict(line)
    assert before - 0.001 <= event.pop("t") <= after + 0.001  # type: ignore[operator]
    assert event == {
        "v": SCHEMA_VERSION,
        "kind": "step",
        "attempt": 2,
        "rank": 1,
        "step": 7,
        "loss": 0.5,
    }


def test_the_launcher_is_rank_minus_one(tmp_path: Path) -> None:
    EventLog(tmp_path / "e").emit("attempt_started")
    assert LAUNCHER == -1
    assert read_events(tmp_path / "e")[0]["rank"] == -1


@pytest.mark.parametrize("kind", [float, np.float64])
def test_values_that_are_not_finite_are_text(tmp_path: Path, kind: type[float]) -> None:
    log = EventLog(tmp_path / "e")
    log.emit("x", loss=kind("nan"), nested={"a": [kind("inf"), (1.0, kind("-inf"))]})
    event = strict(log.path.read_text())
    assert event["loss"] == "nan"
    assert event["nested"] == {"a": ["inf", [1.0, "-inf"]]}


def test_a_value_json_does_not_know_is_written_as_text(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "e")
    log.emit("x", path=Path("a/b"), odd={(1, 2): 3})
    event = strict(log.path.read_text())
    assert (event["path"], event["odd"]) == ("a/b", {"(1, 2)": 3})


def test_a_line_break_in_a_text_does_not_break_the_line(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "e")
    log.emit("x", text="one\ntwo\r\x85\u2028three")
    log.emit("y")
    assert [event["kind"] for event in read_events(log.path)] == ["x", "y"]
    assert read_events(log.path)[0]["text"] == "one\ntwo\r\x85\u2028three"


def test_torn_and_foreign_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "e"
    good = '{"v": 1, "kind": "good", "t": 0, "attempt": 0, "rank": 0}'
    later_schema = '{"v": 99, "kind": "new"}'
    path.write_bytes(
        b"\n".join(
            [
                b'{"v": 1, "kind": "torn',
                good.encode(),
                b"[1, 2]",
                b"\xff\xfe",
                later_schema.encode(),
            ]
        )
        + b'\n{"v": 1, "kind": "half'
    )
    assert [event["kind"] for event in read_events(path)] == ["good"]


def test_a_line_torn_by_a_process_that_died_takes_no_other_with_it(tmp_path: Path) -> None:
    path = tmp_path / "e"
    path.write_bytes(b'{"v": 1, "kind": "torn')
    EventLog(path).emit("after")
    assert [event["kind"] for event in read_events(path)] == ["after"]


def test_a_reader_gives_each_event_once_and_waits_for_the_end_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "e"
    reader = EventReader(path)
    assert reader.new() == []  # the file is not there yet
    log = EventLog(path)
    log.emit("one")
    assert [event["kind"] for event in reader.new()] == ["one"]
    assert reader.new() == []
    with path.open("a") as file:
        file.write('{"v": 1, "kind"')
    assert reader.new() == []
    with path.open("a") as file:
        file.write(': "two"}\n')
    assert [event["kind"] for event in reader.new()] == ["two"]


def test_an_absent_log_has_no_events(tmp_path: Path) -> None:
    assert read_events(tmp_path / "none") == []


def test_closing_twice_does_nothing_and_a_closed_log_does_not_raise(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "e")
    log.close()
    log.close()
    log.emit("late")
    assert log.lost == 1


def test_two_processes_append_at_once_and_no_line_is_mixed(tmp_path: Path) -> None:
    path, count = tmp_path / "e", 1500
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(rank), str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    for writer in writers:
        assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write(b"\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    lines = path.read_text().splitlines()
    assert len(lines) == 2 * count
    events = [strict(line) for line in lines]
    for rank in range(2):
        own = [event for event in events if event["rank"] == rank]
        assert [event["number"] for event in own] == list(range(count))
        assert [len(str(event["filling"])) for event in own] == [
            n * 37 % 9000 for n in range(count)
        ]


def test_on_a_full_disk_the_run_goes_on_and_the_loss_is_told_later(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64) as disk:
        log = EventLog(disk / "e")
        log.emit("before")
        filler = fill(disk)
        written = 1
        while not log.lost:  # the file's own last page still takes some lines
            log.emit("small", filling="x" * 100)
            written += not log.lost
        for _ in range(6):
            log.emit("lost", filling="y" * 100)
        lost = log.lost
        filler.unlink()
        log.emit("after")
        log.emit("later")
        log.close()
        events = read_events(log.path)
    assert lost == 7
    assert len(events) == written + 2
    assert [event["kind"] for event in events[-2:]] == ["after", "later"]
    assert events[-2]["lost_before"] == lost
    assert "lost_before" not in events[-1]
