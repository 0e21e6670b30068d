"""What devices a request asks for: `gpu_ids` or `gpus`, or what its config's `devices` says.

An index means another device on each host, so here it is turned into a UUID, once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from drumline.database.tables import devices
from drumline.errors import DeviceError
from drumline.jobs.training import Gpus, Request

MOST_DEVICES = 4096


def devices_asked(
    connection: Connection, request: Request, said_by_config: str
) -> tuple[tuple[str, ...], Gpus]:
    """UUIDs, and how many devices; with UUIDs their number.

    Raises:
        DeviceError: If a device is not known, is named twice or by something ambiguous, lies on
            another host than the rest, or the number is none. Its value `field` is the one that
            asks.
    """
    try:
        return _asked(connection, request, said_by_config)
    except DeviceError as error:
        by_number = "config.devices" if request.gpus is None else "gpus"
        error.values["field"] = "gpu_ids" if request.gpu_ids else by_number
        raise


def _asked(
    connection: Connection, request: Request, said_by_config: str
) -> tuple[tuple[str, ...], Gpus]:
    if request.gpu_ids:
        uuids = _resolved(connection, request.gpu_ids, request.host)
        return uuids, len(uuids)
    if request.gpus is not None:
        return (), _count(request.gpus)
    said = said_by_config.strip()
    if re.fullmatch(r"cpu(:\d+)?", said):
        return (), 0
    if said in ("auto", "all"):
        return (), "all" if said == "all" else "auto"
    if said.isdecimal():
        return (), _count(int(said.lstrip("0")[:9] or 0))
    named = [part.strip() for part in said.split(",") if part.strip()]
    uuids = _resolved(connection, named, request.host)
    return uuids, len(uuids)


def _count(gpus: Gpus) -> Gpus:
    if isinstance(gpus, int) and not 0 <= gpus <= MOST_DEVICES:
        raise DeviceError(
            f"{gpus:.6g} devices were asked for.",
            remedy=f"Give a number up to {MOST_DEVICES}, auto or all.",
        )
    return gpus


def _resolved(connection: Connection, named: Sequence[str], host: str | None) -> tuple[str, ...]:
    """The UUIDs of what is named, in its order."""
    query = sa.select(devices.c.uuid, devices.c.index.label("position"), devices.c.host_id)
    if host is not None:
        query = query.where(devices.c.host_id == host)
    known = list(connection.execute(query))
    hosts = {row.host_id for row in known}
    found = [_one(reference, known, alone=len(hosts) <= 1) for reference in named]
    uuids = tuple(row.uuid for row in found)
    if len(set(uuids)) < len(uuids):
        raise DeviceError(
            f"Among {', '.join(named)} a device is named twice.", remedy="Name each once."
        )
    if len({row.host_id for row in found}) > 1:
        raise DeviceError(
            f"The devices {', '.join(named)} lie on several hosts.",
            remedy="One training runs on one host: name devices of one.",
        )
    return uuids


def _one(reference: str, known: Sequence[Any], *, alone: bool) -> Any:
    if reference.isdecimal():
        if not alone:
            raise DeviceError(
                f"Index {reference} means another device on each host.",
                remedy="Name devices by UUID, or name the host.",
                device=reference,
            )
        matching = [row for row in known if row.position == int(reference)]
    else:
        matching = [row for row in known if row.uuid == reference] or [
            row for row in known if row.uuid.startswith(reference)
        ]
    if len(matching) != 1:
        what = "is no known device" if not matching else f"means {len(matching)} devices"
        raise DeviceError(
            f"{reference} {what}.",
            remedy="Known devices are listed at /api/v1/system/gpus.",
            device=reference,
        )
    return matching[0]
