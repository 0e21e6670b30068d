"""What runs in the service's one process beside the routes, begun in order and ended in reverse.

On one machine (the broker is in this process) that is an agent, which samples the devices, runs the
trainings and keeps the history in order. With a broker for several hosts agents run on those, and
this process only asks them to look. News for the live feed and the watch for alerts always run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

from anyio.to_thread import run_sync
from fastapi import FastAPI

from drumline.config.service import ServiceSettings
from drumline.hardware import Machine
from drumline.jobs import wakeups
from drumline.jobs.agent_process import Running, beside
from drumline.server import queue_view
from drumline.server.app import Lifespan
from drumline.server.live.sources import Sources
from drumline.server.services import Services
from drumline.server.views.system import Check
from drumline.server.watch import Watch

IN_PROCESS = "memory://"


def one_machine(settings: ServiceSettings) -> bool:
    """Whether the service and its agent are this one process."""
    return settings.broker_url == IN_PROCESS


def lifespan_of(services: Services) -> Lifespan:
    """Starts everything before the first request, and stops it after the last."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        with ExitStack() as stack:
            await run_sync(stack.enter_context, everything(services))
            try:
                async with news_and_alerts(services):
                    yield
            finally:
                await run_sync(stack.close)

    return lifespan


@contextmanager
def everything(services: Services) -> Iterator[None]:
    """Within it, all that belongs into this process runs, and `services` knows of it."""
    if one_machine(services.settings):
        with beside(services.settings, services.database, services.bus) as running:
            _with_agent(services, running)
            yield
    else:
        sender = wakeups.Sender(wakeups.make_app(services.settings.broker_url))
        services.wake = sender.wake
        try:
            yield
        finally:
            sender.stop()


def _with_agent(services: Services, running: Running) -> None:
    monitor = running.agent.monitor

    def machine() -> tuple[str, Machine] | None:
        sample = monitor.latest
        return None if sample is None else (sample.machine.host.hostname[:64], sample.machine)

    def checks() -> list[Check]:
        sample = monitor.latest
        if sample is None:
            return [Check(name="sampling", ok=True, reason="has just begun")]
        told = "; ".join(sample.machine.problems) or "the driver does not answer"
        skipped = f"{sample.skipped} ticks skipped so far"
        reason = skipped if sample.answered else told
        return [Check(name="sampling", ok=sample.answered, reason=reason)]

    def late() -> int | None:
        sample = monitor.latest
        return None if sample is None else sample.skipped

    services.machine = machine
    services.late_ticks = late
    services.running = checks
    services.wake = running.wake


@asynccontextmanager
async def news_and_alerts(services: Services) -> AsyncIterator[None]:
    """Feed `services.feed` and watch for alerts until left; part of an application's lifespan.

    Raises:
        BadInput: If an address that alerts are to go to cannot be used.
    """
    watch = Watch(services.settings, services.database)
    sources = Sources(
        services.feed, services.database, services.bus, why=lambda: queue_view.look(services).waits
    )
    services.watch = watch
    watch.start()
    await sources.start()
    try:
        yield
    finally:
        await sources.stop()
        await asyncio.to_thread(watch.stop)
        services.watch = None
