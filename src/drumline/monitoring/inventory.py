"""The hosts and devices that the service knows, as they were last seen.

Devices that were there and are not any more are told of as lost, over restarts of whoever looks.
Whether a device is free is left to `planning.availability` and `jobs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from pydantic import TypeAdapter
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from drumline.config.service import DAY_S
from drumline.database import Database
from drumline.database.tables import devices, hosts
from drumline.hardware import Device, Machine
from drumline.hardware.device import UNKNOWN_UUID
from drumline.hardware.providers.simulated import SIMULATED

MISSING = "The device was there before and is not found any more."
FORGOTTEN_AFTER_MS = 30 * DAY_S * 1000
KEPT = {"id", "uuid", "first_seen_ms"}
_MACHINE: TypeAdapter[Machine] = TypeAdapter(Machine)


@dataclass(frozen=True)
class HostView:
    """One host as it was at `last_seen_ms`.

    `machine` holds its devices, those lost among them. `problem` says why its devices, or some,
    cannot be read; None where all is well. `device_seen_ms` tells when each device was last there.
    """

    id: str
    name: str
    machine: Machine
    problem: str | None
    first_seen_ms: int
    last_seen_ms: int
    device_seen_ms: Mapping[str, int]

    def age_s(self, now_ms: int) -> float:
        """For how long nothing has been heard of the host."""
        return max(0, now_ms - self.last_seen_ms) / 1000


class Inventory:
    """Hosts and devices in the database. Safe to share among threads."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(self, machine: Machine, now_ms: int, host_id: str | None = None) -> None:
        """Keep what a host is and how its devices are now.

        Args:
            machine: As probed or sampled. MIG instances are kept as devices of their own.
            now_ms: The time of the look.
            host_id: Who it is; its host name by default.

        Raises:
            DatabaseError: If the database cannot be reached.
        """
        identity = (host_id or machine.host.hostname)[:64]
        told = [problem for problem in machine.problems if problem != SIMULATED]
        host = {
            "id": identity,
            "name": machine.host.hostname[:255],
            "inventory": machine.as_dict(),
            "problem": "\n".join(told) or None,
            "first_seen_ms": now_ms,
            "last_seen_ms": now_ms,
        }
        rows = [_row(unit, identity, now_ms) for unit in _units(machine) if _is_known(unit)]
        with self._database.writing() as connection:
            _upsert(connection, hosts, "id", [host])
            _keep_devices(connection, rows)

    def machines(self) -> list[HostView]:
        """All hosts by name, each with its devices in order.

        Raises:
            DatabaseError: If the database cannot be reached.
        """
        with self._database.reading() as connection:
            host_rows = connection.execute(
                sa.select(hosts).order_by(hosts.c.name, hosts.c.id)
            ).all()
            device_rows = connection.execute(sa.select(devices).order_by(devices.c.index)).all()
        return [_view(host, [d for d in device_rows if d.host_id == host.id]) for host in host_rows]


def _view(host: Any, rows: Sequence[Any]) -> HostView:
    machine = _MACHINE.validate_python(host.inventory)
    missing = tuple(_missing(row) for row in _gone(machine, rows, host.last_seen_ms))
    return HostView(
        host.id,
        host.name,
        replace(machine, devices=(*machine.devices, *missing)),
        host.problem,
        host.first_seen_ms,
        host.last_seen_ms,
        {row.uuid: row.last_seen_ms for row in rows},
    )


def _gone(machine: Machine, rows: Sequence[Any], seen_ms: int) -> list[Any]:
    """Rows of devices that were there and should be. Simulated devices and MIG instances come and
    go by a setting; a device not seen for a month was taken out on purpose.
    """
    there = {unit.uuid for unit in _units(machine)}
    return [
        row
        for row in rows
        if row.uuid not in there
        and not row.simulated
        and not row.uuid.startswith("MIG-")
        and seen_ms - row.last_seen_ms < FORGOTTEN_AFTER_MS
    ]


def _missing(row: Any) -> Device:
    return Device(
        row.uuid,
        row.index,
        "cuda" if row.uuid.startswith("GPU-") else "rocm",
        name=row.name,
        memory_total_bytes=row.memory_total_bytes,
        simulated=row.simulated,
        lost=True,
        problem=MISSING,
    )


def _units(machine: Machine) -> list[Device]:
    return [unit for device in machine.devices for unit in (device, *device.mig_instances)]


def _is_known(unit: Device) -> bool:
    return not unit.lost and not unit.uuid.startswith(UNKNOWN_UUID)


def _row(unit: Device, host_id: str, now_ms: int) -> dict[str, Any]:
    return {
        "uuid": unit.uuid,
        "host_id": host_id,
        "index": unit.index,
        "name": unit.name,
        "memory_total_bytes": unit.memory_total_bytes,
        "simulated": unit.simulated,
        "first_seen_ms": now_ms,
        "last_seen_ms": now_ms,
    }


def _keep_devices(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Update those that are known and insert the others: on PostgreSQL every insert, also one that
    becomes an update, would use up a number, and the history has 32 bits for them.
    """
    uuids = [row["uuid"] for row in rows]
    query = sa.select(devices.c.uuid).where(devices.c.uuid.in_(uuids))
    known = set(connection.execute(query).scalars())
    old = [
        {"of": row["uuid"]} | {name: value for name, value in row.items() if name not in KEPT}
        for row in rows
        if row["uuid"] in known
    ]
    new = [row for row in rows if row["uuid"] not in known]
    if old:
        connection.execute(devices.update().where(devices.c.uuid == sa.bindparam("of")), old)
    if new:
        _upsert(connection, devices, "uuid", new)


def _upsert(
    connection: Connection, table: sa.Table, key: str, rows: Sequence[dict[str, Any]]
) -> None:
    """Insert, or bring up to date what changes."""
    postgres = connection.dialect.name == "postgresql"
    dialect: Any = postgresql if postgres else sqlite
    statement = dialect.insert(table)
    changed = {name: statement.excluded[name] for name in rows[0] if name not in KEPT}
    connection.execute(
        statement.on_conflict_do_update(index_elements=[key], set_=changed), list(rows)
    )
