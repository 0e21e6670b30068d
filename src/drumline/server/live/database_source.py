"""From the database to the hub: trainings, the queue, and the devices of other hosts.

One look a second for all clients together, in a thread; a database that hangs makes looks late and
nothing else. What nobody asks for is not read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

from drumline.database import Database, DatabaseError, now_ms
from drumline.jobs.waits import Wait
from drumline.monitoring.aggregate import aggregate
from drumline.monitoring.current import read_current
from drumline.monitoring.readings import iso
from drumline.server.live.bus_source import AGGREGATE, BusSource
from drumline.server.live.hub import Hub
from drumline.server.live.training_states import read_queue, read_trainings

logger = logging.getLogger(__name__)

WHY_EVERY_S = 5.0
KEEP_S = 120.0  # a channel is still read for so long after its last listener left
States = dict[str, dict[str, Any] | None]


class DatabaseSource:
    """Looks into the database as long as somebody listens.

    Args:
        hub: Where it goes.
        database: Where it comes from.
        local: Devices of this host; they come over the bus and are not looked up.
        why: Why trainings wait, by id; asked every `WHY_EVERY_S`, as it looks at every host.
        every_s: The period.
        clock: The wall clock in milliseconds.
    """

    def __init__(
        self,
        hub: Hub,
        database: Database,
        local: BusSource | None = None,
        *,
        why: Callable[[], Mapping[str, Wait]] | None = None,
        every_s: float = 1.0,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._hub = hub
        self._database = database
        self._local = local
        self._why = why
        self._waits: Mapping[str, Wait] = {}
        self._asked_why_ms = 0
        self._every_s = every_s
        self._clock = clock
        self._wanted_ms: dict[str, int] = {}
        self._is_down = False

    def start(self) -> None:
        """Begin; called in the event loop."""
        self._looking = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        """End; a look that is under way is not waited for."""
        self._looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._looking

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except Exception:  # the next look may do better
                logger.exception("A look for the live channels failed")
            await asyncio.sleep(self._every_s)

    async def look(self) -> None:
        """Read what is wanted, and publish what has changed."""
        names = self._wanted()
        if not names:
            return
        local = frozenset(self._local.devices) if self._local else frozenset()
        try:
            states = await asyncio.to_thread(self._read, names, local)
        except DatabaseError as error:
            if not self._is_down:
                logger.warning("The live channels stand still: %s", error)
            self._is_down = True
            return
        self._is_down = False
        if self._local is not None and AGGREGATE in names:
            self._local.pass_aggregate(AGGREGATE not in states)
        for name, state in states.items():
            self._hub.publish(name, state)

    def _wanted(self) -> list[str]:
        """The channels that are listened to, or were of late. Others are dropped."""
        now = self._clock()
        for name in self._hub.wanted(""):
            self._wanted_ms[name] = now
        for name in [n for n, at in self._wanted_ms.items() if now - at > KEEP_S * 1000]:
            del self._wanted_ms[name]
            if not (self._local and (name == AGGREGATE or _uuid(name) in self._local.devices)):
                self._hub.publish(name, None)
        return list(self._wanted_ms)

    def _read(self, names: list[str], local: frozenset[str]) -> States:
        states: States = {}
        ids = [n.removeprefix("training/") for n in names if n.startswith("training/")]
        waits = self._ask_why() if "queue" in names else {}
        if ids or "queue" in names:
            with self._database.reading() as connection:
                found = read_trainings(connection, ids)
                if "queue" in names:
                    states["queue"] = read_queue(connection, self._clock(), waits)
            states |= {f"training/{training_id}": found.get(training_id) for training_id in ids}
        elsewhere = {n for n in names if n.startswith("gpu/") and _uuid(n) not in local}
        if elsewhere or AGGREGATE in names:
            states |= self._read_devices(elsewhere, local, AGGREGATE in names)
        return states

    def _ask_why(self) -> Mapping[str, Wait]:
        now = self._clock()
        if self._why is not None and now - self._asked_why_ms >= WHY_EVERY_S * 1000:
            self._waits, self._asked_why_ms = self._why(), now
        return self._waits

    def _read_devices(self, elsewhere: set[str], local: frozenset[str], whole: bool) -> States:
        now = self._clock()
        current = read_current(self._database, now)
        found = {f"gpu/{reading.device_uuid}": reading.as_dict() for reading in current.readings}
        states: States = {name: found.get(name) for name in elsewhere}
        # A device of this host may be new to the bus, so ask the bus only after the inventory.
        others = [device for device in current.devices if device.uuid not in local]
        if whole and (others or self._local is None):
            problems = sorted({device.problem for device in current.devices if device.problem})
            states[AGGREGATE] = {
                "gpus": sorted(reading.device_uuid for reading in current.readings),
                "time": iso(now),
                "time_ms": now,
                "problems": problems,
                **aggregate(current.devices).as_dict(),
            }
        return states


def _uuid(channel: str) -> str:
    return channel.removeprefix("gpu/")
