"""All sources of a feed, started and stopped together."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from drumline.database import Database
from drumline.jobs.waits import Wait
from drumline.monitoring.bus import Bus
from drumline.server.live.bus_source import BusSource
from drumline.server.live.database_source import DatabaseSource
from drumline.server.live.feed import Feed


class Sources:
    """What brings news to a feed; lives as long as the application.

    Args:
        feed: Where it goes.
        database: Of trainings, the queue and other hosts' devices.
        bus: Of this host's devices.
        why: Why trainings wait, by id.
        every_s: The period of looking into the database.
    """

    def __init__(
        self,
        feed: Feed,
        database: Database,
        bus: Bus,
        *,
        why: Callable[[], Mapping[str, Wait]] | None = None,
        every_s: float = 1.0,
    ) -> None:
        self._bus = BusSource(feed.hub, bus)
        self._database = DatabaseSource(feed.hub, database, self._bus, why=why, every_s=every_s)

    async def start(self) -> None:
        """Begin, in the event loop that serves the feed."""
        self._bus.start()
        self._database.start()

    async def stop(self) -> None:
        """End."""
        self._bus.stop()
        await self._database.stop()
