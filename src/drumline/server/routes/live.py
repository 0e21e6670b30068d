"""The WebSocket of the live feed; its protocol is told in docs/live.md. The gate says who may."""

from __future__ import annotations

from fastapi import APIRouter, WebSocket

from drumline.server.services import services_of

router = APIRouter()


@router.websocket("/live")
async def live(socket: WebSocket) -> None:
    """Channels of devices, trainings and the queue."""
    await services_of(socket).feed.serve(socket)
