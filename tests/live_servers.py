"""A live feed behind a real uvicorn server in a thread, and clients on real sockets."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from websockets.sync.client import ClientConnection, connect

from drumline.server.live.feed import UVICORN_OPTIONS, Feed
from drumline.server.live.serving import LiveServer
from live_viewer import Viewer

PATIENCE_S = 30.0


class Running:
    """A server that runs: its port, its feed, and a way into its event loop."""

    def __init__(self, feed: Feed, application: Any, port: int, options: dict[str, Any]) -> None:
        settings = {**UVICORN_OPTIONS, **options}
        config = uvicorn.Config(application, port=port, log_level="error", **settings)
        self.feed = feed
        self.server = LiveServer(config, feed)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)

    @property
    def port(self) -> int:
        return int(self.server.servers[0].sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/api/v1/live"

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        serving = asyncio.ensure_future(self.server.serve())
        while not self.server.started and not serving.done():
            await asyncio.sleep(0.005)
        self._ready.set()
        await serving

    def call(self, work: Callable[[], Any]) -> Any:
        """Run `work` in the server's event loop and wait for it."""

        async def run() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(PATIENCE_S)

    def publish(self, name: str, state: dict[str, Any] | None) -> None:
        self.call(lambda: self.feed.hub.publish(name, state))

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds in the server's event loop."""

        async def wait() -> None:
            while not condition():
                await asyncio.sleep(0.005)

        asyncio.run_coroutine_threadsafe(wait(), self.loop).result(PATIENCE_S)

    def stop(self) -> None:
        self.server.should_exit = True
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


@contextmanager
def serving(
    feed: Feed | None = None, *, port: int = 0, application: Any = None, **options: Any
) -> Iterator[Running]:
    """A server of `feed`, alone or as part of `application`."""
    feed = feed or Feed()
    alone = Starlette(routes=[WebSocketRoute("/api/v1/live", feed.serve)])
    running = Running(feed, application or alone, port, options)
    try:
        yield running
    finally:
        running.stop()


class Tab:
    """A client on a real socket, with the states it has rebuilt."""

    def __init__(self, url: str, viewer: Viewer | None = None, **options: Any) -> None:
        self.viewer = viewer or Viewer()
        self.socket: ClientConnection = connect(url, max_size=None, **options)
        self.hello = json.loads(self.socket.recv(PATIENCE_S))[0]
        self.viewer.read(json.dumps([self.hello]))

    def ask(self, **request: Any) -> None:
        self.socket.send(json.dumps(request))

    def subscribe(self, *channels: str, **more: Any) -> None:
        self.ask(type="subscribe", channels=channels, **more)

    def read_until(self, condition: Callable[[Viewer], bool]) -> list[Any]:
        """Apply frames until `condition`; the steps they made."""
        steps = []
        while not condition(self.viewer):
            steps.extend(self.viewer.read(str(self.socket.recv(PATIENCE_S))))
        return steps
