"""A check in a world that torchrun, Slurm or mpirun has started, on one node or several.

Each node looks at itself; rank 0 hears all of it, judges, and tells.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from drumline.bench.checks.check import CheckContext, HostCheck, RankCheck, Seat
from drumline.bench.checks.finding import Finding
from drumline.bench.checks.programme import Records, Step, perform
from drumline.bench.checks.ranks import judged
from drumline.bench.checks.registry import HOST_CHECKS, RANK_CHECKS
from drumline.bench.checks.run import look, select, with_torch
from drumline.config import ClusterEnvironment
from drumline.planning import PlannedDevice
from drumline.planning.devices import planned


def check_joined(
    context: CheckContext,
    environment: ClusterEnvironment,
    host_checks: Sequence[HostCheck] = HOST_CHECKS,
    rank_checks: Sequence[RankCheck] = RANK_CHECKS,
) -> list[Finding]:
    """All findings on rank 0; none on the others. Every rank of the world calls it."""
    context = with_torch(context)
    mine = _own_device(context, environment)
    size = environment.world_size
    nodes = max(1, size // max(1, environment.local_world_size))
    context = replace(context, devices=(mine,) * size, nodes=nodes)
    seen = environment.local_rank == 0
    looked = [found for check in host_checks if seen for found in look(check, context)]
    to_measure, left_out = select(rank_checks, context)
    records, heard = Records(environment.rank, None), list[dict[str, Any]]()

    def at_end(seat: Seat) -> None:
        told = {"host": socket.gethostname(), "looked": looked, "device": mine}
        heard.extend(seat.together.control.gather({**told, "records": records.all}))

    steps = [Step.of(check) for check in to_measure]
    perform(steps, records, environment, quick=context.quick, at_end=at_end)
    if environment.rank != 0:
        return []
    if not heard:
        return [*looked, *left_out]
    context = replace(context, devices=tuple(one["device"] for one in heard))
    findings = [_of_node(found, one["host"], nodes) for one in heard for found in one["looked"]]
    for check in to_measure:
        done = [_done(one["records"], check.name) for one in heard]
        findings += judged(check, context, done)
    return findings + left_out


def _own_device(context: CheckContext, environment: ClusterEnvironment) -> PlannedDevice:
    """The device that torch gives this rank: the one of its local rank."""
    usable = context.machine.usable
    if context.torch.available and environment.local_rank < len(usable):
        return planned(usable[environment.local_rank])
    return PlannedDevice("cpu", "CPU process")


def _of_node(found: Finding, host: str, nodes: int) -> Finding:
    return found if nodes == 1 else replace(found, name=f"{host}: {found.name}")


def _done(records: Sequence[dict[str, Any]], check: str) -> dict[str, Any]:
    return next(r for r in records if r["check"] == check and r["state"] == "done")
