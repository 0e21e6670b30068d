"""Turns are given in the order in which they were asked for, and one that gave up gets none."""

from __future__ import annotations

import threading

from drumline.database.turns import Turns

LONG_S = 60.0


def test_first_come_first_served() -> None:
    turns, order = Turns(), []
    assert turns.acquire(LONG_S)

    def take(number: int) -> None:
        assert turns.acquire(LONG_S)
        order.append(number)
        turns.release()

    threads = []
    for number in range(10):
        threads.append(threading.Thread(target=take, args=(number,)))
        threads[-1].start()
        assert turns.wait_for_waiting(number + 1, LONG_S)
    turns.release()
    for thread in threads:
        thread.join()
    assert order == list(range(10))


def test_one_that_gave_up_is_passed_over() -> None:
    turns = Turns()
    assert turns.acquire(LONG_S)
    assert not turns.acquire(0.001)
    turns.release()
    assert turns.acquire(0)  # nobody was handed the turn


def test_who_asks_again_at_once_comes_after_who_waits() -> None:
    turns, order = Turns(), []
    assert turns.acquire(LONG_S)
    other = threading.Thread(target=lambda: (turns.acquire(LONG_S), order.append("other")))
    other.start()
    assert turns.wait_for_waiting(1, LONG_S)
    turns.release()
    assert not turns.acquire(0)
    other.join()
    assert order == ["other"]
