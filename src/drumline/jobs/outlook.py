"""The queue as people see it: its order, why each training waits, and when it may start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from drumline.database import Database, now_ms
from drumline.hardware import Machine
from drumline.jobs.fleet import host_of
from drumline.jobs.queue import Rules, in_order
from drumline.jobs.waiting import read_draining, read_taken, read_usage, read_waiting
from drumline.jobs.waits import Wait, explain


class Outlook:
    """Looks at the queue of one database without changing it."""

    def __init__(
        self,
        database: Database,
        *,
        rules: Rules | None = None,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._database = database
        self._rules = rules or Rules()
        self._clock = clock

    def waits(self, machines: Mapping[str, Machine]) -> dict[str, Wait]:
        """Why each training waits, by id, the next one first.

        Args:
            machines: The hosts that are there, by id, as last seen.
        """
        now = self._clock()
        with self._database.reading() as connection:
            waiting = read_waiting(connection)
            draining = read_draining(connection)
            usage = read_usage(connection, now)
            taken = {host: read_taken(connection, host, now) for host in machines}
        hosts = [host_of(host, machine, taken[host]) for host, machine in machines.items()]
        ordered = in_order([*waiting, *draining], usage, now, self._rules)
        ids = {job.id for job in draining}
        able = [job for job in ordered if job.id not in ids]
        waits = explain(hosts, able, now, self._rules)
        waits |= dict.fromkeys(ids, _DRAINING)
        return {
            job.id: replace(waits[job.id], position=position)
            for position, job in enumerate(ordered, 1)
        }


_DRAINING = Wait(
    0,
    "draining",
    "its last attempt has not given its devices back yet",
    None,
    "until its processes are seen to be gone",
    None,
)
