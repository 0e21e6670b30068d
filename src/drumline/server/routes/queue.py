"""The queue: who waits, why, and when each may start."""

from __future__ import annotations

from fastapi import APIRouter

from drumline.server.queue_view import look
from drumline.server.services import Given
from drumline.server.showing.trainings import wait
from drumline.server.views.trainings import Queue

router = APIRouter(tags=["trainings"])


@router.get("/queue")
def get_queue(given: Given) -> Queue:
    """All trainings that wait, in order, each with why, and when it may start as far as known."""
    seen = look(given)
    rows = {one.id: one for one in given.trainings.some(seen.waits)}
    items = [wait(rows[one], told) for one, told in seen.waits.items() if one in rows]
    return Queue(items=items, hosts=seen.hosts)
