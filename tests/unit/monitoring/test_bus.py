"""Publishing and subscribing within one process."""

from __future__ import annotations

import threading

from drumline.monitoring.bus import Bus


def test_only_channels_asked_for_come_in_order() -> None:
    bus = Bus()
    watching = bus.subscribe(["gpu/a", "queue"])
    for channel in ("gpu/a", "gpu/b", "queue"):
        bus.publish(channel, {"of": channel})
    assert watching.take() == [("gpu/a", {"of": "gpu/a"}), ("queue", {"of": "queue"})]
    assert watching.take() == []


def test_all_channels_where_none_is_named() -> None:
    bus = Bus()
    watching = bus.subscribe(None)
    bus.publish("anything", {})
    assert watching.take() == [("anything", {})]


def test_a_slow_one_gets_the_newest_of_each_channel() -> None:
    bus = Bus()
    slow = bus.subscribe(["a", "b"])
    for number in range(1000):
        bus.publish("a", {"n": number})
        bus.publish("b", {"n": -number})
    assert slow.take() == [("a", {"n": 999}), ("b", {"n": -999})]
    assert slow.coalesced == 2 * 999


def test_what_waits_is_bounded_whatever_is_published() -> None:
    bus = Bus()
    slow = bus.subscribe(None, most_channels=10)
    for number in range(100):
        bus.publish(f"training/{number}", {})
    assert [channel for channel, _ in slow.take()] == [f"training/{n}" for n in range(90, 100)]
    assert slow.dropped == 90


def test_channels_come_and_go_at_any_time() -> None:
    bus = Bus()
    watching = bus.subscribe([])
    bus.publish("a", {"n": 1})
    watching.add("a")
    bus.publish("a", {"n": 2})
    watching.remove("a")  # and what waits of it
    bus.publish("a", {"n": 3})
    assert watching.take() == []
    watching.add("a")
    bus.publish("a", {"n": 4})
    assert watching.take() == [("a", {"n": 4})]


def test_a_closed_one_is_forgotten() -> None:
    bus = Bus()
    for channels in (["a"], None):
        watching = bus.subscribe(channels)
        watching.close()
        bus.publish("a", {})
        assert watching.take() == []
    assert bus._subscribers == {} and not bus._everything


def test_the_last_message_is_there_for_who_comes_late() -> None:
    bus = Bus()
    bus.publish("a", {"n": 1})
    bus.publish("b", {"n": 2})
    bus.publish("a", {"n": 3})
    assert bus.latest("a") == {"n": 3} and bus.latest("c") is None
    assert bus.channels() == ["b", "a"]
    bus.forget("a")
    assert bus.latest("a") is None


def test_one_call_for_all_that_begins_to_wait() -> None:
    calls = []
    bus = Bus()
    watching = bus.subscribe(["a", "b"], notify=lambda: calls.append(len(watching.take())))
    bus.publish("a", {})  # the call may take at once
    bus.publish("b", {})
    assert calls == [1, 1]
    quiet = bus.subscribe(["c"], notify=lambda: calls.append(-1))
    bus.publish("c", {})
    bus.publish("c", {})
    assert calls == [1, 1, -1]
    quiet.take()
    bus.publish("c", {})
    assert calls == [1, 1, -1, -1]


def test_waiting_ends_with_a_message_and_not_before() -> None:
    bus = Bus()
    watching = bus.subscribe(["a"])
    assert not watching.wait(0)
    got = []
    thread = threading.Thread(target=lambda: got.append((watching.wait(60), watching.take())))
    thread.start()
    bus.publish("a", {"n": 1})
    thread.join()
    assert got == [(True, [("a", {"n": 1})])]


def test_the_newest_comes_last_from_many_threads() -> None:
    """A subscriber never keeps an older message than the bus holds as the latest."""
    bus = Bus()
    watching = bus.subscribe(["a"])

    def publish(first: int) -> None:
        for number in range(first, first + 2000):
            bus.publish("a", {"n": number})

    threads = [threading.Thread(target=publish, args=(first,)) for first in (0, 10_000, 20_000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert watching.take() == [("a", bus.latest("a"))]
    assert watching.coalesced == 3 * 2000 - 1
