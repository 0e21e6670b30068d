"""What one client gets in plain cases, written out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drumline.server.live.hub import Client, Hub, Limits, TooManyAnswers, TooManyChannels


def join(hub: Hub) -> Client:
    return hub.join(lambda: None)


def taken(client: Client) -> list[dict[str, Any]]:
    frame = client.take()
    return [] if frame is None else list(json.loads(frame))


def test_a_snapshot_and_then_only_what_changed() -> None:
    hub = Hub()
    hub.publish("queue", {"waiting": 2, "power_w": None, "loss": float("nan")})
    client = join(hub)
    client.subscribe("queue")
    assert taken(client) == [
        {
            "type": "snapshot",
            "channel": "queue",
            "seq": 1,
            "data": {"waiting": 2, "power_w": None, "loss": "nan"},
        }
    ]
    hub.publish("queue", {"waiting": 2, "power_w": None, "loss": float("nan")})
    assert taken(client) == []
    hub.publish("queue", {"waiting": 3, "power_w": None})
    assert taken(client) == [
        {
            "type": "delta",
            "channel": "queue",
            "after": 1,
            "seq": 2,
            "set": {"waiting": 3},
            "unset": ["loss"],
        }
    ]


def test_a_publisher_may_change_its_mapping_afterwards() -> None:
    hub, state = Hub(), {"order": ["a"]}
    hub.publish("queue", state)
    client = join(hub)
    client.subscribe("queue")
    client.take()
    state["order"].append("b")
    hub.publish("queue", state)
    assert taken(client)[0]["set"] == {"order": ["a", "b"]}


def test_a_client_that_fell_behind_gets_the_newest_state_in_place_of_changes() -> None:
    hub = Hub(Limits(behind=2))
    client = join(hub)
    client.subscribe("queue")
    client.take()
    hub.publish("queue", {"n": 1})
    hub.publish("queue", {"n": 2})
    assert [message["type"] for message in taken(client)] == ["delta", "delta"]
    for n in (3, 4, 5):
        hub.publish("queue", {"n": n})
    assert [(message["type"], message["data"]) for message in taken(client)] == [
        ("snapshot", {"n": 5})
    ]


def test_resuming_gives_all_that_was_missed_as_long_as_the_ring_has_it() -> None:
    hub = Hub(Limits(behind=1, ring=3))
    for n in range(1, 6):
        hub.publish("queue", {"n": n})
    client = join(hub)
    client.subscribe("queue", since=2, epoch=hub.epoch)
    first, *rest = taken(client)
    assert first == {"type": "resumed", "channel": "queue", "seq": 2}
    assert [message["set"] for message in rest] == [{"n": 3}, {"n": 4}, {"n": 5}]
    client.subscribe("queue", since=5, epoch=hub.epoch)
    assert taken(client) == [{"type": "resumed", "channel": "queue", "seq": 5}]
    client.subscribe("queue", since=1, epoch=hub.epoch)
    assert [message["type"] for message in taken(client)] == ["snapshot"]
    client.subscribe("queue", since=2, epoch="another life")
    assert [message["type"] for message in taken(client)] == ["snapshot"]


def test_numbers_go_on_where_a_device_comes_again() -> None:
    hub = Hub()
    client = join(hub)
    client.subscribe("gpu/a")
    assert taken(client) == [{"type": "snapshot", "channel": "gpu/a", "seq": 0, "data": None}]
    hub.publish("gpu/a", {"n": 1})
    assert taken(client)[0]["seq"] == 1
    hub.publish("gpu/a", None)
    hub.publish("gpu/a", None)
    assert taken(client) == [{"type": "snapshot", "channel": "gpu/a", "seq": 0, "data": None}]
    hub.publish("gpu/a", {"n": 1})
    assert taken(client)[0] | {"type": ""} == {
        "type": "",
        "channel": "gpu/a",
        "after": 0,
        "seq": 2,
        "set": {"n": 1},
    }


def test_a_message_is_written_once_for_all_clients() -> None:
    hub = Hub()
    clients = [join(hub) for _ in range(3)]
    for client in clients:
        client.subscribe("queue")
        client.take()
    hub.publish("queue", {"n": 1})
    channel = hub.channel("queue")
    assert channel is not None
    (first,), (second,) = channel.since(0) or (), channel.since(0) or ()
    assert first is second
    assert channel.snapshot() is channel.snapshot()
    assert {client.take() for client in clients} == {f"[{first}]"}


def test_only_listeners_are_woken_and_sources_know_what_is_wanted() -> None:
    hub, woken = Hub(), []
    client = hub.join(lambda: woken.append(1))
    client.subscribe("training/7")
    client.take()
    woken.clear()
    hub.publish("queue", {"n": 1})
    assert not woken
    assert hub.wanted("training/") == ["training/7"]
    client.unsubscribe("training/7")
    assert hub.wanted("training/") == []
    hub.publish("training/7", {"step": 1})
    assert not woken
    assert not client.waiting


def test_a_large_backlog_is_cut_into_frames() -> None:
    hub = Hub(Limits(frame_chars=1000))
    client = join(hub)
    for n in range(20):
        hub.publish(f"gpu/{n}", {"text": "x" * 200})
        client.subscribe(f"gpu/{n}")
    frames = []
    while (frame := client.take()) is not None:
        frames.append(frame)
    assert len(frames) > 3
    assert max(map(len, frames)) < 1600
    channels = [message["channel"] for frame in frames for message in json.loads(frame)]
    assert channels == [f"gpu/{n}" for n in range(20)]


def test_bounds_on_channels_and_answers() -> None:
    hub = Hub(Limits(channels=2, answers=2))
    client = join(hub)
    client.subscribe("gpu/a")
    client.subscribe("gpu/b")
    client.subscribe("gpu/b")
    with pytest.raises(TooManyChannels, match="2 channels; gpu/c is one more"):
        client.subscribe("gpu/c")
    assert hub.wanted("") == ["gpu/a", "gpu/b"]
    client.answer("{}")
    client.answer("{}")
    with pytest.raises(TooManyAnswers):
        client.answer("{}")
    client.take()
    client.answer("{}")
