"""The hub against a model: whatever is published, lost, resumed or read late, a client's rebuilt
states are states the channels had, in order, and in the end the newest."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from drumline.server.live.hub import Client, Hub, Limits
from live_viewer import Viewer

LIMITS = Limits(channels=3, frame_chars=200, ring=4, ring_chars=600, behind=2, answers=8)
CHANNELS = st.sampled_from(["queue", "gpu/a", "gpu/b", "training/1"])
VALUES = st.one_of(st.none(), st.integers(0, 3), st.just("x" * 60), st.lists(st.integers(0, 1)))
STATES = st.dictionaries(st.sampled_from("abcde"), VALUES, max_size=5)


class Tab:
    """A viewer with its connection, if it has one."""

    def __init__(self) -> None:
        self.viewer = Viewer()
        self.client: Client | None = None
        self.wakes = 0

    def woken(self) -> None:
        self.wakes += 1


class HubModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.hub = Hub(LIMITS)
        self.newest: dict[str, dict[str, Any] | None] = {}
        self.history: dict[tuple[str, str, int], dict[str, Any]] = {}
        self.tabs = [Tab() for _ in range(3)]
        for tab in range(3):
            self.connect(tab)
            self.subscribe(tab, "queue")
            self.subscribe(tab, "gpu/a")

    @rule(channel=CHANNELS, state=STATES)
    def publish(self, channel: str, state: dict[str, Any]) -> None:
        self.hub.publish(channel, state)
        self.newest[channel] = state
        known = self.hub.channel(channel)
        assert known is not None
        self.history[self.hub.epoch, channel, known.seq] = json.loads(json.dumps(state))

    @rule(channel=CHANNELS)
    def disappear(self, channel: str) -> None:
        self.hub.publish(channel, None)
        self.newest[channel] = None

    @rule(tab=st.integers(0, 2))
    def connect(self, tab: int) -> None:
        self.drop(tab, in_flight=False)
        one = self.tabs[tab]
        one.client = self.hub.join(one.woken)
        one.client.answer(json.dumps({"type": "hello", "epoch": self.hub.epoch}))
        held, epoch = dict(one.viewer.seq), one.viewer.epoch
        for channel, seq in list(held.items())[: LIMITS.channels]:
            one.client.subscribe(channel, since=seq, epoch=epoch)

    @rule(tab=st.integers(0, 2), channel=CHANNELS)
    def subscribe(self, tab: int, channel: str) -> None:
        client = self.tabs[tab].client
        if client and (channel in client.channels or len(client.channels) < LIMITS.channels):
            client.subscribe(channel)

    @rule(tab=st.integers(0, 2), channel=CHANNELS)
    def unsubscribe(self, tab: int, channel: str) -> None:
        one = self.tabs[tab]
        if one.client:
            one.client.unsubscribe(channel)
            one.viewer.forget(channel)

    @rule(tab=st.integers(0, 2))
    def read_a_frame(self, tab: int) -> None:
        one = self.tabs[tab]
        frame = one.client.take() if one.client else None
        if frame is None:
            return
        longest = 2 * LIMITS.frame_chars + LIMITS.ring_chars + 1000
        assert len(frame) < longest
        for channel, seq, state in one.viewer.read(frame):
            assert one.client is not None
            assert channel in one.client.channels
            assert state == self.history.get((self.hub.epoch, channel, seq))

    @rule(tab=st.integers(0, 2), in_flight=st.booleans())
    def drop(self, tab: int, in_flight: bool) -> None:
        one = self.tabs[tab]
        if one.client:
            if in_flight:
                one.client.take()
            self.hub.leave(one.client)
            one.client = None

    @precondition(lambda self: self.newest)
    @rule()
    def restart(self) -> None:
        for tab in range(3):
            self.drop(tab, in_flight=True)
        self.hub = Hub(LIMITS)
        for channel, state in self.newest.items():
            if state is not None:
                self.publish(channel, state)

    @rule(tab=st.integers(0, 2))
    def catch_up(self, tab: int) -> None:
        one = self.tabs[tab]
        if one.client is None:
            return
        while one.client.waiting:
            self.read_a_frame(tab)
        for channel in one.client.channels:
            assert one.viewer.state[channel] == self.newest.get(channel), channel

    @invariant()
    def what_is_held_is_bounded(self) -> None:
        for one in self.tabs:
            if one.client:
                assert len(one.client._pending) <= len(one.client.channels) <= LIMITS.channels
                assert not one.client.waiting or one.wakes
        for name in self.hub.known(""):
            channel = self.hub.channel(name)
            assert channel is not None
            assert len(channel._ring) <= LIMITS.ring
            assert sum(len(delta.text) for delta in channel._ring) <= LIMITS.ring_chars

    def teardown(self) -> None:
        for tab in range(3):
            self.catch_up(tab)
        for tab in range(3):
            self.drop(tab, in_flight=False)
        assert self.hub.wanted("") == []
        assert not self.hub.clients


HubModel.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestHub = HubModel.TestCase
