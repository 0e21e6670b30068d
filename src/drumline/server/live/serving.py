"""A uvicorn server that says goodbye to live clients, and gets rid of those that do not read.

uvicorn alone closes connections without a word on its way down, and all clients would come back at
once. And a connection that it has given up (no answer to a ping, or closed by us) stays for as long
as its peer takes nothing from the buffer, which may be for ever.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import uvicorn

from drumline.server.live.feed import Feed

TICKS_A_SECOND = 10  # of uvicorn's main loop
LINGER_S = 3.0  # how long a closed connection may take to hand over its last bytes


class LiveServer(uvicorn.Server):
    """uvicorn's server, for an application with a live feed.

    Args:
        config: uvicorn's settings; `drumline.server.live.feed.UVICORN_OPTIONS` belong in it.
        feed: The feed that the application serves.
    """

    def __init__(self, config: uvicorn.Config, feed: Feed) -> None:
        super().__init__(config)
        self._feed = feed
        self._closing: dict[Any, float] = {}

    async def on_tick(self, counter: int) -> bool:
        """uvicorn's regular work, and once a second a look for connections that do not end."""
        if counter % TICKS_A_SECOND == 0:
            self._end_lingering()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the feed, then everything else."""
        await self._feed.close()
        ending = asyncio.ensure_future(self._keep_ending())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()

    async def _keep_ending(self) -> None:
        while True:
            self._end_lingering()
            await asyncio.sleep(1 / TICKS_A_SECOND)

    def _end_lingering(self) -> None:
        now = asyncio.get_running_loop().time()
        transports = (connection.transport for connection in self.server_state.connections)
        closing = {transport for transport in transports if transport and transport.is_closing()}
        self._closing = {transport: self._closing.get(transport, now) for transport in closing}
        for transport, since in self._closing.items():
            if now - since > LINGER_S:
                transport.abort()
