"""What runs beside the routes as long as the application does: news for the live feed, alerts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from drumline.server import queue_view
from drumline.server.live.sources import Sources
from drumline.server.services import Services
from drumline.server.watch import Watch


@asynccontextmanager
async def news_and_alerts(services: Services) -> AsyncIterator[None]:
    """Feed `services.feed` and watch for alerts until left; part of an application's lifespan.

    Raises:
        BadInput: If an address that alerts are to go to cannot be used.
    """
    watch = Watch(services.settings, services.database)
    sources = Sources(
        services.feed, services.database, services.bus, why=lambda: queue_view.look(services).waits
    )
    services.watch = watch
    watch.start()
    await sources.start()
    try:
        yield
    finally:
        await sources.stop()
        await asyncio.to_thread(watch.stop)
        services.watch = None
