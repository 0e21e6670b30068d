"""All checks, in the order in which they are made and shown."""

from __future__ import annotations

from drumline.bench.checks import control, device, host, links, machine, model
from drumline.bench.checks.check import CheckContext, HostCheck, RankCheck
from drumline.bench.checks.ranks import START


def _needs_gpus(context: CheckContext) -> str:
    return "no GPU is measured" if context.on_cpu else ""


def _needs_two_gpus(context: CheckContext) -> str:
    return _needs_gpus(context) or ("" if len(context.devices) > 1 else "one GPU has no peer")


def _needs_three(context: CheckContext) -> str:
    few = len(context.devices) < 3
    return "fewer than three ranks: all of them are the only pair" if few else ""


def _needs_nodes(context: CheckContext) -> str:
    return "" if context.nodes > 1 else "one node; start the check by torchrun on several"


HOST_CHECKS = (
    HostCheck("devices", "machine", machine.devices_there),
    HostCheck("driver and torch", "machine", machine.software),
    HostCheck("health", "machine", machine.health),
    HostCheck("/dev/shm", "host", host.shared_memory),
    HostCheck("locked memory", "host", host.locked_memory),
    HostCheck("open files", "host", host.open_files),
    HostCheck("CPUs", "host", host.cpus),
    HostCheck("ports", "host", host.ports),
    HostCheck("disk", "host", host.disk, timeout_s=60.0),
    HostCheck("communication settings", "host", links.settings),
    HostCheck("model fits", "model", model.model_fits, timeout_s=300.0, heavy=True),
)

RANK_CHECKS = (
    RankCheck("matmul", "device", device.measure_matmul, device.judge_matmul),
    RankCheck("memory bandwidth", "device", device.measure_copy, device.judge_copy, slow=True),
    RankCheck(
        "host to device", "device", device.measure_from_host, device.judge_from_host,
        applies=_needs_gpus,
    ),
    RankCheck(
        START, "ranks", links.measure_start, links.judge_start, together=True, timeout_s=90.0
    ),
    RankCheck(
        "peer-to-peer", "ranks", links.measure_peer_access, links.judge_peer_access,
        together=True, applies=_needs_two_gpus,
    ),
    RankCheck(
        "all-reduce", "ranks", links.measure_all_reduce, links.judge_all_reduce, together=True
    ),
    RankCheck(
        "all-reduce on pairs", "ranks", links.measure_pairs, links.judge_pairs,
        together=True, timeout_s=180.0, slow=True, applies=_needs_three,
    ),
    RankCheck("vote latency", "ranks", control.measure_votes, control.judge_votes, together=True),
    RankCheck(
        "clock skew", "ranks", control.measure_clock, control.judge_clock,
        together=True, applies=_needs_nodes,
    ),
)  # fmt: skip
