"""Messages between the parts of one process: who samples publishes, who watches subscribes.

A message is the whole present state of its channel, so a subscriber that is slow gets the newest
and misses those between. Nothing here waits for a subscriber, and none can grow without bound.
Numbering and sending over the network is left to `server.live`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

Message = dict[str, Any]
MOST_CHANNELS = 4096


class Subscription:
    """One subscriber's channels, and what is waiting for it: the newest message of each channel.

    Args:
        bus: Where it was made, by `Bus.subscribe`.
        notify: Called without arguments when something begins to wait after nothing did, on the
            thread that publishes; it must be quick, as `loop.call_soon_threadsafe` is.
        most_channels: No more than so many channels wait; the oldest gives way.
    """

    def __init__(
        self, bus: Bus, notify: Callable[[], object] | None, most_channels: int = MOST_CHANNELS
    ) -> None:
        self._bus = bus
        self._notify = notify
        self._most = most_channels
        self._waiting: OrderedDict[str, Message] = OrderedDict()
        self._condition = threading.Condition()
        self.channels: set[str] = set()
        """What it watches; changed by `add` and `remove` only."""
        self.coalesced = 0
        """Messages that a newer one of their channel replaced before they were taken."""
        self.dropped = 0
        """Messages that gave way as too many channels waited."""

    def add(self, *channels: str) -> None:
        """Watch more channels from now on."""
        self._bus.add(self, channels)

    def remove(self, *channels: str) -> None:
        """Watch these no more; what waits of them is forgotten."""
        self._bus.remove(self, channels)
        with self._condition:
            for channel in channels:
                self._waiting.pop(channel, None)

    def take(self) -> list[tuple[str, Message]]:
        """All that waits, the longest waiting channel first; empty where nothing does."""
        with self._condition:
            taken = list(self._waiting.items())
            self._waiting.clear()
        return taken

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until something waits to be taken; False where the time is over."""
        with self._condition:
            return self._condition.wait_for(lambda: bool(self._waiting), timeout_s)

    def close(self) -> None:
        """Watch nothing any more."""
        self._bus.remove_all(self)
        with self._condition:
            self._waiting.clear()

    def deliver(self, channel: str, message: Message) -> bool:
        """Let a message wait; whether it is the first to. Called by the bus under its lock."""
        with self._condition:
            first = not self._waiting
            if channel in self._waiting:
                self.coalesced += 1
            elif len(self._waiting) >= self._most:
                self._waiting.popitem(last=False)
                self.dropped += 1
            self._waiting[channel] = message
            if first:
                self._condition.notify_all()
        return first

    def notify(self) -> None:
        """Tell the subscriber that something waits."""
        if self._notify is not None:
            self._notify()


class Bus:
    """Channels by name. Safe to share among threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscribers: dict[str, set[Subscription]] = {}
        self._everything: set[Subscription] = set()
        self._latest: OrderedDict[str, Message] = OrderedDict()

    def publish(self, channel: str, message: Message) -> None:
        """Give a message to all who watch the channel. Do not change it afterwards."""
        with self._lock:
            self._latest[channel] = message
            self._latest.move_to_end(channel)
            if len(self._latest) > MOST_CHANNELS:
                self._latest.popitem(last=False)
            receivers = (*self._subscribers.get(channel, ()), *self._everything)
            awake = [one for one in receivers if one.deliver(channel, message)]
        for subscription in awake:  # outside the lock, as it may come back to the bus
            subscription.notify()

    def latest(self, channel: str) -> Message | None:
        """The last message of a channel; None where there was none."""
        with self._lock:
            return self._latest.get(channel)

    def channels(self) -> list[str]:
        """The channels that had a message, in order of their last."""
        with self._lock:
            return list(self._latest)

    def forget(self, channel: str) -> None:
        """Drop the last message of a channel that is over."""
        with self._lock:
            self._latest.pop(channel, None)

    def subscribe(
        self,
        channels: Iterable[str] | None,
        *,
        notify: Callable[[], object] | None = None,
        most_channels: int = MOST_CHANNELS,
    ) -> Subscription:
        """A subscription to some channels, to be extended at will, or to all where None."""
        subscription = Subscription(self, notify, most_channels)
        if channels is None:
            with self._lock:
                self._everything.add(subscription)
        else:
            self.add(subscription, channels)
        return subscription

    def add(self, subscription: Subscription, channels: Iterable[str]) -> None:
        """Let a subscription watch more channels."""
        with self._lock:
            for channel in channels:
                self._subscribers.setdefault(channel, set()).add(subscription)
                subscription.channels.add(channel)

    def remove(self, subscription: Subscription, channels: Iterable[str]) -> None:
        """Let it watch fewer."""
        with self._lock:
            self._remove(subscription, channels)

    def remove_all(self, subscription: Subscription) -> None:
        """Let it watch none."""
        with self._lock:
            self._everything.discard(subscription)
            self._remove(subscription, list(subscription.channels))

    def _remove(self, subscription: Subscription, channels: Iterable[str]) -> None:
        for channel in channels:
            subscription.channels.discard(channel)
            watching = self._subscribers.get(channel, set())
            watching.discard(subscription)
            if not watching:
                self._subscribers.pop(channel, None)
