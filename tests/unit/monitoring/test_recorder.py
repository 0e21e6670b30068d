"""Readings written from a thread, through a database that fails for a while."""

from __future__ import annotations

from collections.abc import Iterable

from history_readings import history_database, reading, rows

from drumline.database import DatabaseError
from drumline.database.tables import gpu_metrics_history
from drumline.monitoring.history import History
from drumline.monitoring.history.recorder import Recorder
from drumline.monitoring.readings import Reading


class Failing:
    """In the place of a history: fails as often as it is told, and keeps what it takes."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.taken: list[Reading] = []

    def write(self, readings: Iterable[Reading]) -> int:
        if self.failures:
            self.failures -= 1
            raise DatabaseError("It does not answer.")
        new = list(readings)
        self.taken += new
        return len(new)


def test_all_that_was_put_is_written_at_the_end(database_url: str) -> None:
    with history_database(database_url) as database:
        recorder = Recorder(History(database), every_s=3600)
        recorder.start()
        for second in range(100):
            recorder.put([reading(second, power_w=1.0)])
        recorder.stop()
        assert len(rows(database, gpu_metrics_history)) == 100
        assert recorder.given_up == 0


def test_what_the_database_did_not_take_comes_again_in_order() -> None:
    history = Failing(2)
    recorder = Recorder(history)  # type: ignore[arg-type]
    for second in range(3):
        recorder.put([reading(second)])
        assert recorder.flush() == (second == 2)
    assert history.taken == [reading(0), reading(1), reading(2)]


def test_beyond_its_room_the_oldest_are_given_up_and_counted() -> None:
    history = Failing(1)
    recorder = Recorder(history, most_waiting=5)  # type: ignore[arg-type]
    recorder.put(reading(second) for second in range(4))
    assert not recorder.flush()
    recorder.put(reading(second) for second in range(4, 8))
    assert recorder.flush()
    assert history.taken == [reading(second) for second in range(3, 8)]
    assert recorder.given_up == 3
