"""What the routes of one service work with, made once and handed to each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request
from starlette.requests import HTTPConnection

from drumline.config.service import ServiceSettings
from drumline.database import Database
from drumline.hardware import Machine
from drumline.jobs.leases import Leases
from drumline.jobs.trainings import Trainings
from drumline.monitoring.bus import Bus
from drumline.monitoring.history import History
from drumline.monitoring.inventory import Inventory
from drumline.server.access.identity import Identity
from drumline.server.access.rate import RateLimit
from drumline.server.access.tokens import Tokens
from drumline.server.live.feed import Feed
from drumline.server.planner import Planner
from drumline.server.prometheus import Exposition, Health
from drumline.server.views.system import Check
from drumline.server.watch import Watch


def _nothing() -> None:
    return None


@dataclass
class Services:
    """Everything that routes ask.

    Attributes:
        settings: Of the service.
        database: Migrated.
        bus: What is sampled in this process is published here.
        machine: This host as it was just now, by its host id; None where it is not sampled here.
        wake: Has agents look at the queue soon.
        running: How what runs in this process is doing.
        late_ticks: Samples skipped so far; None where this host is not sampled here.
        watch: What looks for alerts; None where nothing does.
    """

    settings: ServiceSettings
    database: Database
    bus: Bus = field(default_factory=Bus)
    machine: Callable[[], tuple[str, Machine] | None] = _nothing
    wake: Callable[[], object] = _nothing
    running: Callable[[], list[Check]] = list
    late_ticks: Callable[[], int | None] = _nothing
    watch: Watch | None = None

    def __post_init__(self) -> None:
        self.trainings = Trainings(self.database)
        self.leases = Leases(self.database, lease_ms=round(self.settings.lease_s * 1000))
        self.inventory = Inventory(self.database)
        self.history = History(self.database, sample_every_s=self.settings.sample_every_s)
        self.tokens = Tokens(self.database)
        self.planner = Planner(self.settings)
        self.logins = RateLimit(most=10, most_of_all=100, period_s=60)
        self.feed = Feed()
        self.exposition = Exposition(self.database, self.health)

    def health(self) -> Health:
        """How the parts of this process are doing."""
        return Health(
            live_clients=self.feed.clients,
            live_channels=len(self.feed.hub.known("")),
            sampler_late_ticks=self.late_ticks(),
            alerts_open=self.watch.open if self.watch else None,
            alerts_failed=self.watch.failed if self.watch else None,
        )


def services_of(connection: HTTPConnection) -> Services:
    """The services of the application that a request or WebSocket belongs to."""
    found = connection.app.state.services
    assert isinstance(found, Services)
    return found


def _of_request(request: Request) -> Services:
    return services_of(request)


def _who(request: Request) -> Identity:
    found = request.scope["identity"]
    assert isinstance(found, Identity)
    return found


Given = Annotated[Services, Depends(_of_request)]
Who = Annotated[Identity, Depends(_who)]
