"""`drumline serve`: the database brought up to date, the socket opened, the server run to its end.

Whatever can be wrong is found before anything is started: settings, the database, an address that
others can reach without a token, a port that is taken.
"""

from __future__ import annotations

import errno
import logging
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from drumline.config.service import ServiceSettings
from drumline.database import Database, open_database
from drumline.database.migrate import upgrade
from drumline.errors import BadInput
from drumline.server.access.addresses import needs_token
from drumline.server.access.tokens import Tokens
from drumline.server.app import create_app
from drumline.server.lifecycle import lifespan_of
from drumline.server.live.feed import UVICORN_OPTIONS, Feed
from drumline.server.live.serving import LiveServer
from drumline.server.services import Services

logger = logging.getLogger(__name__)

STOP_WITHIN_S = 10


def ready_database(settings: ServiceSettings) -> Database:
    """The database, brought up to date.

    Raises:
        DatabaseError: If it does not answer, or was written by a newer version.
    """
    database = open_database(settings.database)
    upgrade(database)
    return database


def serve(settings: ServiceSettings, ready: Callable[[str], object]) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        settings: Of the service.
        ready: Gets the URL once requests are answered.

    Raises:
        BadInput: If the address cannot be had, or a token is needed and there is none.
        DatabaseError: If the database cannot be used.
    """
    database = ready_database(settings)
    try:
        check_tokens(settings, Tokens(database))
        with listening(settings) as listener:
            services = Services(settings, database)
            app = create_app(settings, database, services, lifespan_of(services))
            config = uvicorn.Config(
                app,
                access_log=False,  # which would show queries; see `access.envelope`
                log_config=None,
                server_header=False,
                timeout_graceful_shutdown=STOP_WITHIN_S,
                **UVICORN_OPTIONS,
            )
            _quiet_signals()
            _Server(config, services.feed, lambda: ready(url_of(listener))).run(sockets=[listener])
    finally:
        database.close()


def check_tokens(settings: ServiceSettings, tokens: Tokens) -> None:
    """Refuse to be reached by others without a token.

    Raises:
        BadInput: If others can reach the service, and there is no token.
    """
    if needs_token(settings) and not tokens.any():
        raise BadInput(
            f"Others can reach the service at {settings.host}, and there is no token.",
            remedy="Make one first: drumline token create --role operator",
            host=settings.host,
        )


def listening(settings: ServiceSettings) -> socket.socket:
    """A socket on the service's address.

    Raises:
        BadInput: If the port is taken, or the address is not this machine's.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _unusable(settings, error) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise _unusable(settings, error) from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Where a browser on this machine finds the service."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _unusable(settings: ServiceSettings, error: OSError) -> BadInput:
    where = f"port {settings.port} of {settings.host}"
    if error.errno == errno.EADDRINUSE:
        return BadInput(
            f"The {where} is taken.",
            remedy="Choose another with --port or DRUMLINE_PORT; 0 lets the system choose.",
            host=settings.host,
            port=settings.port,
        )
    return BadInput(
        f"The service cannot listen on {where}: {error.strerror or error}.",
        remedy="Choose an address of this machine with --host or DRUMLINE_HOST.",
        host=settings.host,
        port=settings.port,
    )


def _quiet_signals() -> None:
    """uvicorn raises the signal that ended it once more at its end; nothing is left to do then."""

    def nothing(_number: int, _frame: FrameType | None) -> None:
        return

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, nothing)


class _Server(LiveServer):
    """Tells when it is ready."""

    def __init__(self, config: uvicorn.Config, feed: Feed, ready: Callable[[], object]) -> None:
        super().__init__(config, feed)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        await super().startup(sockets)
        if self.started:
            self._ready()
