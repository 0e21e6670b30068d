"""The live feed over real sockets: no gap after a reconnect, bounded buffers, goodbyes with a
delay."""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from drumline.server.live.admission import Arrivals
from drumline.server.live.feed import Feed
from drumline.server.live.hub import Limits
from live_servers import PATIENCE_S, Running, Tab, serving
from live_viewer import Viewer


def closing(tab: Tab) -> ConnectionClosed:
    with pytest.raises(ConnectionClosed) as closed:
        while True:
            tab.socket.recv(PATIENCE_S)
    return closed.value


def test_subscribe_follow_and_unsubscribe() -> None:
    with serving() as server:
        server.publish("queue", {"waiting": 1})
        tab = Tab(server.url)
        assert tab.hello["epoch"] == server.feed.hub.epoch
        tab.subscribe("queue", "gpu/a")
        tab.read_until(lambda viewer: len(viewer.state) == 2)
        assert tab.viewer.state == {"queue": {"waiting": 1}, "gpu/a": None}
        server.publish("gpu/a", {"power_w": None})
        tab.read_until(lambda viewer: viewer.state["gpu/a"] == {"power_w": None})
        tab.ask(type="unsubscribe", channels=["queue"])
        tab.read_until(lambda viewer: bool(viewer.other))
        server.publish("queue", {"waiting": 2})
        server.publish("gpu/a", None)
        steps = tab.read_until(lambda viewer: viewer.state["gpu/a"] is None)
        assert [step[0] for step in steps] == ["gpu/a"]
        tab.socket.close()
        server.until(lambda: server.feed.clients == 0)
        assert server.feed.hub.wanted("") == []


def test_no_gap_and_nothing_twice_over_many_reconnects() -> None:
    with serving() as server:
        viewer, seen = Viewer(), []
        for start in range(0, 50, 5):
            tab = Tab(server.url, viewer)
            tab.subscribe("queue", since=dict(viewer.seq), epoch=viewer.epoch)
            for n in range(start, start + 4):
                server.publish("queue", {"n": n})
            wanted = {"n": start + 3}
            seen += tab.read_until(
                lambda viewer, wanted=wanted: viewer.state.get("queue") == wanted
            )
            tab.socket.close()
            server.publish("queue", {"n": start + 4})  # while nobody listens
        numbers = [state["n"] for _, _, state in seen if state]
        assert numbers[-48:] == list(range(1, 49))


def test_a_restarted_server_is_not_mistaken_for_the_one_before() -> None:
    with serving() as server:
        port = server.port
        for n in range(3):
            server.publish("queue", {"n": n})
        tab = Tab(server.url)
        tab.subscribe("queue")
        tab.read_until(lambda viewer: viewer.seq.get("queue") == 3)
        epoch = tab.viewer.epoch
    closed = closing(tab)
    assert closed.rcvd is not None
    assert closed.rcvd.code == 1012
    assert 500 <= json.loads(closed.rcvd.reason)["retry_after_ms"] <= 5000
    with serving(port=port) as server:
        for n in range(10, 14):
            server.publish("queue", {"n": n})
        again = Tab(server.url, tab.viewer)
        assert again.viewer.epoch != epoch
        again.subscribe("queue", since={"queue": 3}, epoch=epoch)
        (step,) = again.read_until(lambda viewer: "queue" in viewer.seq)
        assert step == ("queue", 4, {"n": 13})


def n_of(viewer: Viewer) -> int | None:
    return (viewer.state.get("gpu/a") or {}).get("n")


def write_buffers(server: Running) -> list[int]:
    return [
        connection.transport.get_write_buffer_size()
        for connection in server.server.server_state.connections
    ]


def small_socket(port: int) -> socket.socket:
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.connect(("127.0.0.1", port))
    return raw


def test_a_client_that_does_not_read_holds_a_bounded_buffer_and_delays_nobody() -> None:
    with serving() as server:
        slow = Tab(server.url, sock=small_socket(server.port), max_queue=1)
        slow.subscribe("gpu/a")
        quick = Tab(server.url)
        quick.subscribe("gpu/a")
        quick.read_until(lambda viewer: "gpu/a" in viewer.seq)
        server.until(lambda: len(server.feed.hub.wanted("gpu/")) == 1)
        largest = 0
        for n in range(600):
            server.publish("gpu/a", {"n": n, "filling": f"{n % 10}" * 20_000})
            wanted = n
            quick.read_until(lambda viewer, wanted=wanted: n_of(viewer) == wanted)
            largest = max(largest, *server.call(lambda: write_buffers(server)))
        assert largest < 65_536 + 2 * 131_072  # high water, and one frame above it
        steps = slow.read_until(lambda viewer: n_of(viewer) == 599)
        assert len(steps) < 550
        slow.socket.close()
        quick.socket.close()


def silent_client(server: Running) -> socket.socket:
    """A socket that has done the handshake, and reads nothing that comes after it."""
    raw = small_socket(server.port)
    raw.settimeout(PATIENCE_S)
    raw.sendall(
        b"GET /api/v1/live HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
        b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    assert raw.recv(12) == b"HTTP/1.1 101"
    return raw


def masked(text: str) -> bytes:
    """A client's text frame of 126 to 65,535 bytes, under a mask of zeros."""
    data = text.encode()
    return b"\x81\xfe" + len(data).to_bytes(2, "big") + bytes(4) + data


def test_a_client_that_asks_without_reading_is_cut_off() -> None:
    with serving(Feed(Limits(answers=8))) as server, silent_client(server) as raw:
        question = masked(json.dumps({"type": "subscribe", "channels": ["x" * 150] * 100}))
        with suppress(ConnectionError):
            for _ in range(2_000):
                raw.sendall(question)
        server.until(lambda: server.feed.clients == 0)


@pytest.mark.parametrize("full", [False, True])
def test_a_dead_client_is_dropped_even_if_its_buffer_is_full(full: bool) -> None:
    with (
        serving(ws_ping_interval=0.5, ws_ping_timeout=0.5) as server,
        silent_client(server) as dead,
    ):
        server.until(lambda: server.feed.clients == 1)
        if full:
            dead.sendall(masked(json.dumps({"type": "subscribe", "channels": ["gpu/a"] * 20})))
            server.until(lambda: server.feed.hub.wanted("gpu/") == ["gpu/a"])
            for n in range(100):
                server.publish("gpu/a", {"n": n, "filling": f"{n % 10}" * 60_000})
            assert max(server.call(lambda: write_buffers(server))) > 65_536
        server.until(lambda: server.feed.clients == 0)
        server.until(lambda: not server.server.server_state.connections)


def test_a_client_that_does_not_read_does_not_keep_the_server_from_ending() -> None:
    with serving() as server, silent_client(server) as silent:
        silent.sendall(masked(json.dumps({"type": "subscribe", "channels": ["gpu/a"] * 20})))
        server.until(lambda: server.feed.hub.wanted("gpu/") == ["gpu/a"])
        for n in range(100):
            server.publish("gpu/a", {"n": n, "filling": f"{n % 10}" * 60_000})
        server.stop()


@pytest.mark.parametrize(
    ("sent", "answer"),
    [("{", "bad_request"), (b"\x00", "bad_input"), ("x" * 70_000, 1009), ("x" * 200_000, 1009)],
)
def test_wrong_messages(sent: Any, answer: str | int) -> None:
    with serving() as server:
        tab = Tab(server.url)
        tab.socket.send(sent)
        if isinstance(answer, int):
            closed = closing(tab)
            assert closed.rcvd is not None
            assert closed.rcvd.code == answer
        else:
            tab.read_until(lambda viewer: bool(viewer.other))
            assert tab.viewer.other[0]["code"] == answer
            tab.ask(type="ping")
            tab.read_until(lambda viewer: len(viewer.other) == 2)
            assert tab.viewer.other[1] == {"type": "pong"}
            tab.socket.close()


def test_more_than_the_door_lets_in_are_sent_away_with_a_delay() -> None:
    arrivals = Arrivals(clients=2, retry_ms=(1000, 2000))
    with serving(Feed(arrivals=arrivals)) as server:
        inside = [Tab(server.url) for _ in range(2)]
        from websockets.sync.client import connect

        outside = connect(server.url)
        with pytest.raises(ConnectionClosed) as closed:
            outside.recv(PATIENCE_S)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1013
        assert 1000 <= json.loads(closed.value.rcvd.reason)["retry_after_ms"] <= 2000
        for tab in inside:
            tab.socket.close()
        server.until(lambda: server.feed.clients == 0)
        Tab(server.url).socket.close()


def test_a_connection_ends_after_a_while_and_goes_on_without_a_gap() -> None:
    with serving(Feed(arrivals=Arrivals(longest_s=0.2))) as server:
        server.publish("queue", {"n": 1})
        tab = Tab(server.url)
        tab.subscribe("queue")
        tab.read_until(lambda viewer: "queue" in viewer.state)
        closed = closing(tab)
        assert closed.rcvd is not None
        assert closed.rcvd.code == 1012
        assert "retry_after_ms" in closed.rcvd.reason
        server.publish("queue", {"n": 2})
        again = Tab(server.url, tab.viewer)
        again.subscribe("queue", since={"queue": 1}, epoch=again.viewer.epoch)
        assert again.read_until(lambda viewer: viewer.seq["queue"] == 2) == [("queue", 2, {"n": 2})]


def test_fifty_tabs_are_told_to_come_back_at_fifty_moments() -> None:
    with serving() as server:
        tabs = [Tab(server.url) for _ in range(50)]
    reasons = [closing(tab).rcvd for tab in tabs]
    delays = sorted(json.loads(reason.reason)["retry_after_ms"] for reason in reasons if reason)
    assert len(delays) == 50
    assert delays[-1] - delays[0] > 2_000  # of 4,500; smaller has a chance of 1 in 10^15
    assert len(set(delays)) > 40
    assert len({tab.hello["retry_after_ms"] for tab in tabs}) > 40
