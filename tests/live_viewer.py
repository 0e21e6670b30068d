"""A client of the live protocol as a console would write it; it checks every number it is told."""

from __future__ import annotations

import json
from typing import Any


class Viewer:
    """Rebuilds the channels' states from messages."""

    def __init__(self) -> None:
        self.epoch: str | None = None
        self.seq: dict[str, int] = {}
        self.state: dict[str, dict[str, Any] | None] = {}
        self.other: list[dict[str, Any]] = []

    def read(self, frame: str) -> list[tuple[str, int, dict[str, Any] | None]]:
        """Apply a frame; after each message that changed a channel: its name, number and state."""
        steps = []
        for message in json.loads(frame):
            channel = self._apply(message)
            if channel is not None:
                steps.append((channel, self.seq[channel], self.state[channel]))
        return steps

    def _apply(self, message: dict[str, Any]) -> str | None:
        kind, channel = message["type"], message.get("channel")
        if kind == "hello":
            self._begin(message["epoch"])
        elif kind == "snapshot":
            self.seq[channel], self.state[channel] = message["seq"], message["data"]
            return channel
        elif kind == "resumed":
            assert self.seq[channel] == message["seq"], "resumed somewhere else"
        elif kind == "delta":
            assert message["after"] == self.seq[channel], "a change was lost or came twice"
            assert message["seq"] > message["after"]
            state = {**(self.state[channel] or {}), **message["set"]}
            for name in message.get("unset", ()):
                del state[name]
            self.seq[channel], self.state[channel] = message["seq"], state
            return channel
        else:
            self.other.append(message)
        return None

    def _begin(self, epoch: str) -> None:
        if epoch != self.epoch:
            self.seq.clear()
            self.state.clear()
        self.epoch = epoch

    def forget(self, channel: str) -> None:
        self.seq.pop(channel, None)
        self.state.pop(channel, None)
