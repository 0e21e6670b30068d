"""The queue told, with the hosts as the service sees them at this moment."""

from __future__ import annotations

from dataclasses import dataclass

from drumline.jobs.outlook import Outlook
from drumline.jobs.waits import Wait
from drumline.server.availability import Availability
from drumline.server.services import Services


@dataclass(frozen=True)
class QueueView:
    """Why each training waits, by id, the next one first; and how many hosts were counted on."""

    waits: dict[str, Wait]
    hosts: int


def look(services: Services) -> QueueView:
    """The queue as it is now."""
    views = Availability(services).hosts_there(None)
    waits = Outlook(services.database).waits({view.id: view.machine for view in views})
    return QueueView(waits, len(views))
