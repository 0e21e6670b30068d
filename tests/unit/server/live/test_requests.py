"""Requests of the live protocol, right and wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline.server.live.hub import Hub, Limits, TooManyAnswers
from drumline.server.live.requests import handle


def ask(*requests: Any, hub: Hub | None = None) -> list[dict[str, Any]]:
    hub = hub or Hub()
    client = hub.join(lambda: None)
    for request in requests:
        handle(client, request if isinstance(request, str) else json.dumps(request))
    return list(json.loads(client.take() or "[]"))


def test_subscribing_resuming_unsubscribing_and_ping() -> None:
    hub = Hub()
    hub.publish("queue", {"n": 1})
    hub.publish("queue", {"n": 2})
    both = {"type": "subscribe", "channels": ["queue", "gpu/GPU-1"]}
    assert [(m["type"], m["seq"]) for m in ask(both, hub=hub)] == [("snapshot", 2), ("snapshot", 0)]
    since = {**both, "since": {"queue": 1}, "epoch": hub.epoch}
    assert [m["type"] for m in ask(since, hub=hub)] == ["resumed", "delta", "snapshot"]
    leave = {"type": "unsubscribe", "channels": ["queue", "gpu/GPU-1"]}
    assert ask(both, leave, {"type": "ping"}, hub=hub) == [
        {"type": "unsubscribed", "channels": ["queue", "gpu/GPU-1"]},
        {"type": "pong"},
    ]


@pytest.mark.parametrize(
    ("request_text", "part"),
    [
        ("", "Invalid JSON"),
        ("[]", "be an object"),
        ('{"type":"shout"}', "shout"),
        ('{"type":"subscribe"}', "subscribe.channels"),
        ('{"type":"subscribe","channels":[]}', "at least 1"),
        ('{"type":"subscribe","channels":"queue"}', "valid array"),
        ('{"type":"subscribe","channels":["queue"],"since":{"queue":-1},"epoch":"a"}', "0"),
        ('{"type":"subscribe","channels":["queue"],"since":{"queue":1}}', "epoch"),
        ('{"type":"ping","loud":true}', "loud"),
    ],
)
def test_a_wrong_request_is_answered_and_named(request_text: str, part: str) -> None:
    error, pong = ask(request_text, {"type": "ping"})
    assert (error["type"], error["code"], pong["type"]) == ("error", "bad_request", "pong")
    assert part in error["message"]
    assert error["remedy"]


def test_an_unknown_channel_is_named_and_the_others_are_subscribed() -> None:
    names = ["nothing", "gpu/", "gpu/a b", "queue/1", "gpu/x\n", "queue"]
    error, snapshot = ask({"type": "subscribe", "channels": names})
    assert error["code"] == "unknown_channel"
    assert error["values"]["channels"] == names[:-1]
    assert snapshot["channel"] == "queue"


def test_mig_and_amd_names_are_channels() -> None:
    names = ["gpu/MIG-GPU-8f6d/7/0", "gpu/0000:1b:00.0", "gpu/simulated-cuda-0", "training/42"]
    assert [m["channel"] for m in ask({"type": "subscribe", "channels": names})] == names


def test_one_channel_too_many_is_an_error_message() -> None:
    hub = Hub(Limits(channels=1))
    error, snapshot = ask({"type": "subscribe", "channels": ["queue", "gpu/a"]}, hub=hub)
    assert (error["code"], error["values"]["channel"]) == ("too_many_channels", "gpu/a")
    assert snapshot["channel"] == "queue"


def test_a_client_that_asks_without_reading_is_stopped() -> None:
    client = Hub(Limits(answers=5)).join(lambda: None)
    with pytest.raises(TooManyAnswers):
        for _ in range(6):
            handle(client, "nonsense")


@given(st.text() | st.recursive(st.none() | st.text() | st.integers(), st.lists).map(json.dumps))
def test_no_text_breaks_it(text: str) -> None:
    for message in ask(text):
        assert message["type"] in {"error", "pong"}
