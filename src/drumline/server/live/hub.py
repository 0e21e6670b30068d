"""The live feed without its transport: channels, and clients that each go through them at their
own speed.

A client holds no messages, only the number of the last change it was given of each channel. What it
gets next is worked out when it has room for it: the changes it lacks, or, if it has fallen behind,
the newest state. So memory for a client is bounded by its subscriptions, however slow it is.

Everything here runs in one thread, that of the event loop.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from drumline.errors import BadInput
from drumline.server.live.channel import Channel, nothing, resumed


class TooManyChannels(BadInput):
    """A client subscribes to more channels than one connection may."""

    code = "too_many_channels"


class TooManyAnswers(BadInput):
    """A client asks on and on without reading the answers."""

    code = "too_many_answers"


@dataclass(frozen=True)
class Limits:
    """Bounds of the feed. Sizes are characters of JSON text, which is ASCII.

    `behind` is by how many changes of one channel a connected client may lag before it gets the
    newest state in their place; `ring` is how many a client may miss while it is away.
    """

    channels: int = 512
    request_chars: int = 65_536
    frame_chars: int = 131_072
    ring: int = 120
    ring_chars: int = 65_536
    behind: int = 5
    answers: int = 64


class Hub:
    """All channels and all clients.

    `epoch` names this life of the service: sequence numbers mean nothing in another. They count
    through all channels, so a channel that goes and comes again never repeats one.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.epoch = secrets.token_hex(8)
        self.clients: set[Client] = set()
        self._seq = 0
        self._channels: dict[str, Channel] = {}
        self._listeners: dict[str, set[Client]] = {}

    def publish(self, name: str, state: Mapping[str, Any] | None) -> None:
        """Make `state` the newest of a channel; None: what it told of is no longer there.

        Nothing is sent where nothing differs.
        """
        if state is None:
            if self._channels.pop(name, None) is None:
                return
        else:
            channel = self._channels.get(name) or self._add(name)
            if not channel.advance(state, self._seq + 1):
                return
            self._seq += 1
        for client in self._listeners.get(name, ()):
            client.mark(name)

    def wanted(self, prefix: str) -> list[str]:
        """The channels with listeners whose names begin so, in order."""
        return sorted(name for name in self._listeners if name.startswith(prefix))

    def known(self, prefix: str) -> list[str]:
        """The channels with a state whose names begin so, in order."""
        return sorted(name for name in self._channels if name.startswith(prefix))

    def join(self, wake: Callable[[], None]) -> Client:
        """A new client; `wake` is called whenever there is something for it to take."""
        client = Client(self, wake)
        self.clients.add(client)
        return client

    def leave(self, client: Client) -> None:
        """Forget a client and its subscriptions. Leaving twice does nothing."""
        self.clients.discard(client)
        for name in client.channels:
            self.remove_listener(name, client)

    def channel(self, name: str) -> Channel | None:
        """The channel of this name, or None while nothing is known of it."""
        return self._channels.get(name)

    def add_listener(self, name: str, client: Client) -> None:
        """Tell `client` of changes of a channel, whether it exists yet or not."""
        self._listeners.setdefault(name, set()).add(client)

    def remove_listener(self, name: str, client: Client) -> None:
        """Tell it no more."""
        listeners = self._listeners.get(name, set())
        listeners.discard(client)
        if not listeners:
            self._listeners.pop(name, None)

    def _add(self, name: str) -> Channel:
        limits = self.limits
        channel = Channel(name, most=limits.ring, most_chars=limits.ring_chars)
        self._channels[name] = channel
        return channel


class Client:
    """One connection's place in each of its channels. Made by `Hub.join`."""

    def __init__(self, hub: Hub, wake: Callable[[], None]) -> None:
        self._hub = hub
        self._wake = wake
        self._seen: dict[str, int | None] = {}  # None: has nothing yet, or asks anew
        self._resuming: set[str] = set()
        self._pending: dict[str, None] = {}  # in the order in which they became so
        self._answers: list[str] = []

    @property
    def channels(self) -> tuple[str, ...]:
        """The channels subscribed to."""
        return tuple(self._seen)

    @property
    def waiting(self) -> bool:
        """Whether there is something to take."""
        return bool(self._pending or self._answers)

    def subscribe(self, name: str, *, since: int | None = None, epoch: str | None = None) -> None:
        """Get a channel from now on: the changes after `since` if that is a number of this epoch
        and no change was lost since, else the whole state. Subscribing again asks anew.

        Raises:
            TooManyChannels: If this would be one more than a client may have.
        """
        most = self._hub.limits.channels
        if name not in self._seen and len(self._seen) >= most:
            raise TooManyChannels(
                f"A connection may subscribe to {most} channels; {name} is one more.",
                remedy="Unsubscribe from others first.",
                channel=name,
                most=most,
            )
        goes_on = since is not None and epoch == self._hub.epoch
        self._seen[name] = since if goes_on else None
        self._resuming.add(name) if goes_on else self._resuming.discard(name)
        self._hub.add_listener(name, self)
        self.mark(name)

    def unsubscribe(self, name: str) -> None:
        """Get nothing more of a channel; nothing happens where it was not subscribed to."""
        self._seen.pop(name, None)
        self._pending.pop(name, None)
        self._resuming.discard(name)
        self._hub.remove_listener(name, self)

    def answer(self, text: str) -> None:
        """Put a message for this client alone before everything else.

        Raises:
            TooManyAnswers: If it has not read those before.
        """
        if len(self._answers) >= self._hub.limits.answers:
            raise TooManyAnswers(
                f"{len(self._answers)} answers wait to be read.",
                remedy="Read answers before asking more.",
            )
        self._answers.append(text)
        self._wake()

    def mark(self, name: str) -> None:
        """Note that a channel has something new."""
        self._pending[name] = None
        self._wake()

    def take(self) -> str | None:
        """What to send next, a JSON array of messages; None if there is nothing.

        It ends after about `frame_chars`; the rest is taken next time, as new as it is then.
        """
        parts, self._answers = self._answers, []
        room = self._hub.limits.frame_chars - sum(map(len, parts))
        while self._pending and room > 0:
            name = next(iter(self._pending))
            del self._pending[name]
            texts = self._catch_up(name)
            room -= sum(map(len, texts))
            parts.extend(texts)
        return f"[{','.join(parts)}]" if parts else None

    def _catch_up(self, name: str) -> list[str]:
        channel, seen = self._hub.channel(name), self._seen[name]
        resumes = name in self._resuming
        self._resuming.discard(name)
        newest = channel.seq if channel else 0
        self._seen[name] = newest
        if seen is None:
            return [channel.snapshot() if channel else nothing(name)]
        if channel is None:
            missing: list[str] | None = [] if seen == newest else None
        else:
            missing = channel.since(seen)
        if missing is None or (not resumes and len(missing) > self._hub.limits.behind):
            return [channel.snapshot() if channel else nothing(name)]
        return [resumed(name, seen), *missing] if resumes else missing
