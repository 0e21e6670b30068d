"""The gate before the application: every request and WebSocket passes it, or gets a problem.

In this order: is the service meant (Host), is it no other site's page that asks (Origin), who asks
(token or cookie), may they (role: whoever changes something must be an operator). What is not under
`/api` or `/metrics` is the console's files, which anybody who reaches the service may have: they
hold nothing, and the page for logging in is among them.
"""

from __future__ import annotations

import logging
from http.cookies import CookieError, SimpleCookie

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from drumline.config.service import ServiceSettings
from drumline.errors import DrumlineError
from drumline.server.access.addresses import Names, needs_token, same_site
from drumline.server.access.identity import LOCAL, Identity, Role
from drumline.server.access.tokens import Tokens
from drumline.server.errors import ForeignOrigin, NotAllowed, TokenNeeded, UnknownHost
from drumline.server.problems import problem_of, response_of

logger = logging.getLogger(__name__)

COOKIE = "drumline_session"
SESSION_PATH = "/api/v1/session"
LOOKING = frozenset({"GET", "HEAD", "OPTIONS"})
FOR_VIEWERS = frozenset({"/api/v1/system/gpus/validate"})
"""Paths that change nothing although they are posted to."""
GUARDED = ("/api/", "/metrics")
_WEBSOCKET_POLICY = 1008


class Gate:
    """Lets in who may come in, and puts an `Identity` into the scope.

    Args:
        app: What stands behind.
        settings: Of the service.
        tokens: Of its database.
    """

    def __init__(self, app: ASGIApp, settings: ServiceSettings, tokens: Tokens) -> None:
        self._app = app
        self._names = Names(settings)
        self._tokens = tokens
        self._open = not needs_token(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or answer with what is wrong."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            self._check_site(scope, headers)
            scope["identity"] = await self._identify(scope, headers)
        except DrumlineError as error:
            await _refuse(error, scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check_site(self, scope: Scope, headers: Headers) -> None:
        host = headers.get("host", "")
        if not self._names.has(host):
            raise UnknownHost(
                f"This service does not go by the name {host[:100]!r}.",
                remedy="Name it in DRUMLINE_ALLOWED_HOSTS if it is to.",
            )
        if scope["type"] == "http" and scope["method"] in LOOKING:
            return
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        foreign = site not in ("same-origin", "none")
        if foreign or (origin is not None and not same_site(origin, host)):
            raise ForeignOrigin(
                f"The request comes from a page of {(origin or 'another site')[:100]}.",
                remedy="Ask from the console of this service, or without a browser.",
            )

    async def _identify(self, scope: Scope, headers: Headers) -> Identity | None:
        path = scope["path"]
        if not path.startswith(GUARDED):
            return None
        secret, cookie = bearer(headers), session_cookie(headers)
        found: Identity | None = None
        if secret is not None:
            found = await run_in_threadpool(self._tokens.who, secret)
            if found is None:
                raise TokenNeeded("The token is not known, or was revoked.", remedy=_HOW)
        elif cookie is not None:
            found = await run_in_threadpool(self._tokens.whose_session, cookie)
        if found is None and self._open:
            found = LOCAL
        if path == SESSION_PATH:
            return found
        if found is None:
            raise TokenNeeded("A token is needed.", remedy=_HOW)
        needed = _needed(scope, path)
        if not found.may(needed):
            raise NotAllowed(
                f"{found.name} is {found.role}; this needs {needed}.",
                remedy="Use the token of an operator.",
                role=found.role,
                needed=needed,
            )
        return found


_HOW = (
    "Send the header `Authorization: Bearer TOKEN`, or log in; make one with: drumline token create"
)


def bearer(headers: Headers) -> str | None:
    """The token of an Authorization header; None where there is none."""
    scheme, _, secret = headers.get("authorization", "").partition(" ")
    if not scheme:
        return None
    return secret.strip() if scheme.lower() == "bearer" else ""


def session_cookie(headers: Headers) -> str | None:
    """What this service's cookie holds; None where there is none."""
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return None
    return found.value if found is not None and found.value else None


def _needed(scope: Scope, path: str) -> Role:
    if scope["type"] == "websocket" or scope["method"] in LOOKING or path in FOR_VIEWERS:
        return Role.VIEWER
    return Role.OPERATOR


async def _refuse(error: DrumlineError, scope: Scope, receive: Receive, send: Send) -> None:
    problem = problem_of(error)
    if scope["type"] == "http":
        await response_of(problem)(scope, receive, send)
        return
    await receive()  # websocket.connect
    if "websocket.http.response" in scope.get("extensions", {}):
        await WebSocket(scope, receive, send).send_denial_response(response_of(problem))
    else:
        await send({"type": "websocket.close", "code": _WEBSOCKET_POLICY, "reason": problem.code})
