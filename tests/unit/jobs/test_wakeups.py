"""Wake-ups within one process, without a broker's server."""

from __future__ import annotations

import logging
import queue

import pytest

from drumline.jobs import wakeups


def test_a_wake_up_is_a_message_without_content_that_runs_the_handler() -> None:
    app = wakeups.make_app("memory://", "here")
    seen: queue.Queue[str] = queue.Queue()
    worker = wakeups.Worker(
        app,
        {name: lambda name=name: seen.put(name) for name in (wakeups.WAKE, wakeups.ROLL_UP)},
        {wakeups.ROLL_UP: 0.1},
    )
    worker.start()
    sender = wakeups.Sender(app)
    try:
        assert seen.get(timeout=60) == wakeups.ROLL_UP, "what is due comes by itself"
        sender.wake()
        while seen.get(timeout=60) != wakeups.WAKE:
            pass
    finally:
        sender.stop()
        worker.stop()


def test_a_broker_that_is_away_neither_raises_nor_holds_up_the_caller(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sender = wakeups.Sender(wakeups.make_app("redis://127.0.0.1:9/0", "here"))
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            sender.wake()
        sender.wake()
        sender.stop()
    told = [record for record in caplog.records if "A wake-up was not sent" in record.message]
    assert len(told) <= 2, "many wake-ups are one"


def test_a_handler_that_fails_is_told_of_in_a_line_and_does_not_end_the_worker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = wakeups.make_app("memory://", "there")
    seen: queue.Queue[int] = queue.Queue()

    def fails() -> None:
        seen.put(1)
        raise ValueError("not now")

    worker = wakeups.Worker(app, {wakeups.SWEEP: fails}, {wakeups.SWEEP: 0.1})
    with caplog.at_level(logging.WARNING):
        worker.start()
        for _ in range(3):
            seen.get(timeout=60)
        worker.stop()
    assert "drumline.sweep: not now" in caplog.messages


def test_settings_keep_off_the_traps_of_brokers() -> None:
    conf = wakeups.make_app("redis://127.0.0.1:9/0", "here").conf
    assert not conf.task_acks_late, "a visibility timeout has nothing to run again"
    assert conf.worker_prefetch_multiplier == 0, "a lost acknowledgement must not count for ever"
    assert conf.task_ignore_result
    assert conf.result_backend is None
    assert not conf.worker_enable_remote_control
    assert conf.accept_content == ["json"]
    assert conf.broker_connection_max_retries is None, "an outage of any length is waited for"
