"""The WebSocket of the live feed, and the page for Prometheus. Who may come in, the gate says."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Response, WebSocket

from drumline.server.live.feed import Feed
from drumline.server.prometheus import Exposition

LIVE_PATH = "/api/v1/live"


def live_router(feed: Feed, exposition: Exposition) -> APIRouter:
    """Both routes.

    Args:
        feed: What the WebSocket gives.
        exposition: What Prometheus reads.
    """
    router = APIRouter()

    @router.websocket(LIVE_PATH)
    async def live(socket: WebSocket) -> None:
        await feed.serve(socket)

    @router.get(
        "/metrics",
        tags=["system"],
        summary="Metrics for Prometheus",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    def metrics(accept: Annotated[str, Header()] = "") -> Response:
        page, content_type = exposition.page(accept)
        return Response(page, headers={"Content-Type": content_type})

    return router
