"""The live feed and /metrics as part of the service: who may come in, news from real sources."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from drumline.config.service import ServiceSettings
from drumline.database import open_database
from drumline.hardware import Machine
from drumline.jobs.training import Request
from drumline.monitoring.inventory import Inventory
from drumline.monitoring.readings import readings_of
from drumline.server.access.identity import Role
from drumline.server.app import create_app
from drumline.server.lifecycle import news_and_alerts
from drumline.server.services import Services
from live_servers import PATIENCE_S, Running, Tab, serving
from queue_cases import CONFIG

MACHINE = Machine.probe(simulate="2xH100")
GPUS = [device.uuid for device in MACHINE.devices]


@contextmanager
def service(url: str, **settings: Any) -> Iterator[tuple[Running, Services]]:
    """The whole application on a real socket, with its news and alerts."""
    database = open_database(url)
    services = Services(ServiceSettings(**settings), database)

    @asynccontextmanager
    async def lifespan(_app: Any) -> Any:
        async with news_and_alerts(services):
            yield

    app = create_app(services.settings, database, services, lifespan)
    try:
        with serving(services.feed, application=app) as running:
            yield running, services
    finally:
        database.close()


def refused(url: str, **options: Any) -> int:
    with pytest.raises(InvalidStatus) as error:
        Tab(url, **options)
    return error.value.response.status_code


def test_devices_over_the_bus_and_trainings_from_the_database(database_url: str) -> None:
    with service(database_url) as (running, services):
        Inventory(services.database).record(MACHINE, 1_700_000_000_000, "h")
        tab = Tab(running.url)
        tab.subscribe("gpus/aggregate", "queue", f"gpu/{GPUS[0]}")
        tab.read_until(lambda viewer: len(viewer.state) == 3)
        for reading in readings_of(MACHINE.devices, 1_700_000_000_007):
            services.bus.publish(f"gpu/{reading.device_uuid}", reading.as_dict())
        services.bus.publish("gpus/aggregate", {"devices": 2, "of": "the bus"})
        tab.read_until(lambda viewer: (viewer.state["gpus/aggregate"] or {}).get("of") is not None)
        assert tab.viewer.state["gpus/aggregate"]["gpus"] == sorted(GPUS)
        tab.read_until(
            lambda viewer: (
                (viewer.state[f"gpu/{GPUS[0]}"] or {}).get("time_ms") == 1_700_000_000_007
            )
        )
        training = services.trainings.create(Request(CONFIG, gpus=1))
        tab.subscribe(f"training/{training.id}")
        tab.read_until(lambda viewer: bool((viewer.state["queue"] or {}).get("waiting")))
        assert tab.viewer.state["queue"]["waiting"][0]["id"] == training.id
        tab.read_until(lambda viewer: viewer.state["queue"]["waiting"][0]["reason"] is not None)
        assert tab.viewer.state["queue"]["waiting"][0]["code"] == "no_host"
        tab.read_until(lambda viewer: bool(viewer.state.get(f"training/{training.id}")))
        services.trainings.cancel(training.id)
        tab.read_until(
            lambda viewer: viewer.state[f"training/{training.id}"]["state"] == "cancelled"
        )
        page = httpx.get(f"http://127.0.0.1:{running.port}/metrics", timeout=PATIENCE_S)
        assert page.headers["Content-Type"].startswith("text/plain")
        assert "drumline_live_clients 1.0" in page.text
        assert "drumline_alerts_open 0.0" in page.text
        assert 'drumline_trainings{state="cancelled"} 1.0' in page.text
        tab.socket.close()


def test_a_page_of_another_site_and_another_name_are_refused(sqlite_url: str) -> None:
    with service(sqlite_url) as (running, _):
        Tab(running.url, origin=f"http://127.0.0.1:{running.port}").socket.close()
        assert refused(running.url, origin="https://evil.example") == 403
        assert refused(running.url, origin="null") == 403
        rebound = running.url.replace("127.0.0.1", "localhost")
        Tab(rebound).socket.close()
        metrics = f"http://127.0.0.1:{running.port}/metrics"
        answer = httpx.get(metrics, headers={"Host": "evil.example"}, timeout=PATIENCE_S)
        assert answer.status_code == 421
        assert "drumline_live" not in answer.text
        running.until(lambda: running.feed.clients == 0)


def test_where_a_token_is_needed_both_ask_for_it(sqlite_url: str) -> None:
    with service(sqlite_url, allowed_hosts="gpus.example.org") as (running, services):
        _, secret = services.tokens.create("prometheus", Role.VIEWER)
        allowed = {"Authorization": f"Bearer {secret}"}
        metrics = f"http://127.0.0.1:{running.port}/metrics"
        assert refused(running.url) == 401
        assert refused(running.url, additional_headers={"Authorization": "Bearer wrong"}) == 401
        assert httpx.get(metrics, timeout=PATIENCE_S).status_code == 401
        Tab(running.url, additional_headers=allowed).socket.close()
        assert httpx.get(metrics, headers=allowed, timeout=PATIENCE_S).status_code == 200
        login = httpx.post(
            f"http://127.0.0.1:{running.port}/api/v1/session",
            json={"token": secret},
            timeout=PATIENCE_S,
        )
        cookie = "; ".join(f"{name}={value}" for name, value in login.cookies.items())
        Tab(running.url, additional_headers={"Cookie": cookie}).socket.close()
        running.until(lambda: running.feed.clients == 0)
