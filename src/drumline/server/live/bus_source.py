"""From the bus of this process to the hub: the devices of this host, as they are sampled."""

from __future__ import annotations

import asyncio
from typing import Any

from drumline.monitoring.bus import Bus
from drumline.server.live.hub import Hub

AGGREGATE = "gpus/aggregate"
GATHER_S = 0.01  # so that what is published together goes out together
SILENT_S = 60.0  # a channel that has been silent for so long is gone


class BusSource:
    """Publishes what comes over the bus, in the thread of the event loop.

    Args:
        hub: Where it goes.
        bus: Where it comes from; any thread may publish there.
    """

    def __init__(self, hub: Hub, bus: Bus) -> None:
        self._hub = hub
        self._bus = bus
        self._passes_aggregate = True
        self.devices: set[str] = set()
        """The devices of this host, by UUID."""
        self._heard_s: dict[str, float] = {}

    def pass_aggregate(self, passes: bool) -> None:
        """Say whether the aggregate of this host is that of the service; not so with others."""
        latest = self._bus.latest(AGGREGATE)
        if passes and not self._passes_aggregate and latest is not None:
            self._publish_aggregate(latest)
        self._passes_aggregate = passes

    def start(self) -> None:
        """Begin; called in the event loop."""
        self._loop = asyncio.get_running_loop()
        self._subscription = self._bus.subscribe(None, notify=self._notify)
        for channel in self._bus.channels():
            latest = self._bus.latest(channel)
            if latest is not None:
                self._publish(channel, latest)
        self._looking = self._loop.call_later(SILENT_S, self._look_for_silent)

    def stop(self) -> None:
        """End; called in the event loop."""
        self._subscription.close()
        self._looking.cancel()

    def _notify(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._loop.call_later, GATHER_S, self._drain)
        except RuntimeError:
            return  # the loop has ended before the sampler did

    def _drain(self) -> None:
        for channel, message in self._subscription.take():
            self._publish(channel, message)

    def _publish(self, channel: str, message: dict[str, Any]) -> None:
        if channel.startswith("gpu/"):
            self.devices.add(channel.removeprefix("gpu/"))
            self._heard_s[channel] = self._loop.time()
        if channel != AGGREGATE:
            self._hub.publish(channel, message)
        elif self._passes_aggregate:
            self._publish_aggregate(message)

    def _publish_aggregate(self, message: dict[str, Any]) -> None:
        self._hub.publish(AGGREGATE, {"gpus": sorted(self.devices), **message})

    def _look_for_silent(self) -> None:
        limit = self._loop.time() - SILENT_S
        for channel in [name for name, heard_s in self._heard_s.items() if heard_s < limit]:
            del self._heard_s[channel]
            self.devices.discard(channel.removeprefix("gpu/"))
            self._hub.publish(channel, None)
        self._looking = self._loop.call_later(SILENT_S / 4, self._look_for_silent)
