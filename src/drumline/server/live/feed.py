"""The live feed of one service: hub, door, and the connections as they are served.

A connection is two loops for as long as it lives, one that reads requests and one that sends what
the hub has; no task is made for a message. The server below it (uvicorn) answers pings and drops a
connection whose pings are not answered; who may connect at all is for `server.access` to say.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from drumline.errors import BadInput
from drumline.server.live.admission import Arrivals, Door
from drumline.server.live.channel import as_json
from drumline.server.live.hub import Client, Hub, Limits
from drumline.server.live.requests import error_text, handle

PROTOCOL = 1
POLICY = 1008
TOO_BIG = 1009
RESTARTING = 1012
LATER = 1013
GOODBYE_S = 1.0

# What uvicorn is to be started with. Compression would be done for every client anew, for small
# messages; pings find dead clients; a request longer than this is cut off before it is read.
UVICORN_OPTIONS: dict[str, Any] = {
    "ws_per_message_deflate": False,
    "ws_ping_interval": 20.0,
    "ws_ping_timeout": 20.0,
    "ws_max_size": 131_072,
}


class Feed:
    """Everything live of one service.

    Args:
        limits: Bounds on what one client may hold.
        arrivals: Bounds on connecting.
    """

    def __init__(self, limits: Limits | None = None, arrivals: Arrivals | None = None) -> None:
        self.hub = Hub(limits)
        self.door = Door(arrivals or Arrivals(), time.monotonic)
        self._connections: dict[_Connection, None] = {}
        self._closing = False

    @property
    def clients(self) -> int:
        """How many are connected."""
        return len(self.hub.clients)

    async def serve(self, socket: WebSocket) -> None:
        """Serve one connection to its end. `socket` is not accepted yet, but may be."""
        wait_s = self.door.wait_s()
        full = self.clients >= self.door.arrivals.clients
        if wait_s:
            await asyncio.sleep(wait_s)
        await socket.accept(subprotocol=_subprotocol(socket))
        if wait_s is None or full or self._closing:
            await socket.close(RESTARTING if self._closing else LATER, self.retry_reason())
            return
        connection = _Connection(self, socket)
        self._connections[connection] = None
        try:
            await connection.run()
        finally:
            del self._connections[connection]

    async def close(self) -> None:
        """Tell every client to come again, each after a delay of its own, and close.

        A client that reads nothing is waited for no longer than `GOODBYE_S`.
        """
        self._closing = True
        connections = list(self._connections)
        await asyncio.gather(*(one.close(RESTARTING, self.retry_reason()) for one in connections))

    def hello(self) -> str:
        """What every client gets first."""
        limits = self.hub.limits
        return as_json(
            {
                "type": "hello",
                "protocol": PROTOCOL,
                "epoch": self.hub.epoch,
                "retry_after_ms": self.door.retry_ms(),
                "limits": {"channels": limits.channels, "message_bytes": limits.request_chars},
            }
        )

    def retry_reason(self) -> str:
        """What a connection is closed with: when the client is to come again."""
        return as_json({"retry_after_ms": self.door.retry_ms()})


class _Connection:
    """The two loops of one socket."""

    def __init__(self, feed: Feed, socket: WebSocket) -> None:
        self._feed = feed
        self._socket = socket
        self._news = asyncio.Event()
        self._client: Client = feed.hub.join(self._news.set)
        self._client.answer(feed.hello())

    async def run(self) -> None:
        sending = asyncio.ensure_future(self._send())
        try:
            async with asyncio.timeout(self._feed.door.arrivals.longest_s):
                await self._receive()
        except TimeoutError:
            await self.close(RESTARTING, self._feed.retry_reason())
        except BadInput as error:
            await self.close(POLICY, error.code)
        except WebSocketDisconnect:
            pass
        finally:
            self._feed.hub.leave(self._client)
            sending.cancel()
            await asyncio.wait([sending])

    async def close(self, code: int, reason: str) -> None:
        """Close from this side; the client may be gone already, or read nothing any more."""
        try:
            async with asyncio.timeout(GOODBYE_S):
                await self._socket.close(code, reason)
        except (RuntimeError, WebSocketDisconnect, TimeoutError):
            return

    async def _receive(self) -> None:
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text")
            if text is None:
                self._client.answer(error_text(_not_text()))
            elif len(text) > self._feed.hub.limits.request_chars:
                await self.close(TOO_BIG, "message_too_big")
                return
            else:
                handle(self._client, text)

    async def _send(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while (frame := self._client.take()) is not None:
                try:
                    await self._socket.send({"type": "websocket.send", "text": frame})
                except (RuntimeError, WebSocketDisconnect):
                    return  # closed; the other loop ends by itself


def _subprotocol(socket: WebSocket) -> str | None:
    return "drumline" if "drumline" in socket.scope.get("subprotocols", ()) else None


def _not_text() -> BadInput:
    return BadInput("The message is binary.", remedy="Send JSON as text.")
