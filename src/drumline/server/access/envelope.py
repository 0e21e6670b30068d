"""What every request and answer has around it: a limit on its body, headers, a line in the log."""

from __future__ import annotations

import logging
import time
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from drumline.server.errors import TooLarge
from drumline.server.problems import problem_of, response_of

access_log = logging.getLogger("drumline.access")

MOST_BODY_BYTES = 1_048_576
"""A config is some kilobytes; nothing larger is ever sent here."""

SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
SHOWN = frozenset(
    {
        "after", "archived", "bytes", "count", "cursor", "from", "from_step", "gpu_ids", "host",
        "kinds", "last", "limit", "memory_mb", "names", "offset", "points", "rank", "state",
        "task", "to", "to_step", "view",
    }
)  # fmt: skip
"""Parts of a query that the log shows; the value of any other may be a secret."""


class Envelope:
    """Bodies within bounds, headers on every answer, a line in the log for each request."""

    def __init__(self, app: ASGIApp, most_bytes: int = MOST_BODY_BYTES) -> None:
        self._app = app
        self._most = most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, with all this around."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun_s, status = time.perf_counter(), 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                _add_headers(MutableHeaders(scope=message), scope["path"])
            await send(message)

        try:
            await self._bounded(scope, receive, sending)
        finally:
            took_ms = (time.perf_counter() - begun_s) * 1000
            access_log.info("%s", line(scope, status, took_ms))

    async def _bounded(self, scope: Scope, receive: Receive, send: Send) -> None:
        announced = Headers(scope=scope).get("content-length", "0")
        if announced.isdecimal() and int(announced) > self._most:
            await response_of(problem_of(self._too_large()))(scope, receive, send)
            return
        read, over, begun = 0, False, False

        async def receiving() -> Message:
            nonlocal read, over
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._most:
                over = True
                raise self._too_large()  # which the application may take for something else
            return message

        async def noting(message: Message) -> None:
            nonlocal begun
            if not over or begun:
                begun = True
                await send(message)

        try:
            await self._app(scope, receiving, noting)
        except TooLarge:
            if begun:
                raise
        if over and not begun:
            await response_of(problem_of(self._too_large()))(scope, receive, send)

    def _too_large(self) -> TooLarge:
        return TooLarge(
            f"The request has more than {self._most:,} bytes.",
            remedy="Data and models are named in a config, not sent.",
            most=self._most,
        )


def line(scope: Scope, status: int, took_ms: float) -> str:
    """The line of the log: no header, and of the query only what is known to hold no secret."""
    query = scope.get("query_string", b"").decode("latin-1")
    shown = [(k, v if k in SHOWN else "***") for k, v in parse_qsl(query, keep_blank_values=True)]
    told = f"?{urlencode(shown, safe='*,:')}" if shown else ""
    client = (scope.get("client") or ("?",))[0]
    path = "".join(c if c.isprintable() else "?" for c in scope["path"])
    return f"{client} {scope['method']} {path}{told} {status} {took_ms:.0f} ms"


def _add_headers(headers: MutableHeaders, path: str) -> None:
    for name, value in SECURITY_HEADERS.items():
        headers.setdefault(name, value)
    if path.startswith("/api/"):
        headers.setdefault("Cache-Control", "no-store")
