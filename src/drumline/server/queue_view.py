"""The queue told: in which order trainings wait, why each does, and when it may start."""

from __future__ import annotations

from dataclasses import dataclass

from drumline.database import now_ms
from drumline.jobs.queue import Rules, Waiting, in_order
from drumline.jobs.waiting import read_usage, read_waiting
from drumline.jobs.waits import Wait, explain
from drumline.server.availability import Availability, seen_by_queue
from drumline.server.services import Services


@dataclass(frozen=True)
class QueueView:
    """Who waits, in order; why, by id; and how many hosts were counted on."""

    ordered: tuple[Waiting, ...]
    waits: dict[str, Wait]
    hosts: int


def look(services: Services) -> QueueView:
    """The queue as it is now."""
    now, rules = now_ms(), Rules()
    with services.database.reading() as connection:
        waiting = read_waiting(connection)
        usage = read_usage(connection, now) if waiting else {}
    views = Availability(services).hosts_there(None)
    if not waiting:
        return QueueView((), {}, len(views))
    ordered = in_order(waiting, usage, now, rules)
    hosts = [seen_by_queue(services.database, view, now) for view in views]
    return QueueView(tuple(ordered), explain(hosts, ordered, now, rules), len(views))
