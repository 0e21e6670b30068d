"""Checks of what joins the ranks: peer-to-peer access, all-reduce on pairs and on all, and the
settings that steer NCCL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

import psutil

from drumline.bench.checks.check import CheckContext, Seat, device_names, ranks_in_words
from drumline.bench.checks.finding import Finding, failed, passed, warned
from drumline.hardware import Link
from drumline.planning.tightness import link_in_words

OF_NVLINK, OF_PCIE = 0.5, 0.25
"""Below these parts of a link's nominal bandwidth an all-reduce is slow. PCIe pairs go through
host memory where peer-to-peer is off, which halves their rate."""

_MIB = 2**20
_NCCL_REMEDY = (
    "Run with NCCL_DEBUG=INFO to see the path taken; try NCCL_P2P_DISABLE=1 to tell whether "
    "peer-to-peer is at fault (BIOS: ACS, IOMMU)."
)
_GLOO_REMEDY = "Set GLOO_SOCKET_IFNAME to an interface that works between the ranks."


def measure_start(seat: Seat) -> dict[str, Any]:
    """What the ranks met over; meeting is the work, and was done before this."""
    import torch

    nccl = None
    if seat.device.type == "cuda":
        version: Callable[[], tuple[int, ...]] = torch.cuda.nccl.version
        nccl = ".".join(str(part) for part in version())
    return {"backend": seat.together.backend, "nccl": nccl}


def judge_start(context: CheckContext, measured: Sequence[dict[str, Any]]) -> Sequence[Finding]:
    """The ranks formed a process group."""
    first = measured[0]
    version = f" {first['nccl']}" if first["nccl"] else ""
    text = f"{ranks_in_words(context, len(measured))} met over {first['backend']}{version}"
    return [passed("process group", text, first)]


def measure_peer_access(seat: Seat) -> list[tuple[int, int, bool]]:
    """For each pair of this machine's devices whether the one reads the other's memory."""
    import torch

    if seat.rank != 0:
        return []
    pairs = combinations(range(torch.cuda.device_count()), 2)
    return [
        (a, b, torch.cuda.can_device_access_peer(a, b) and torch.cuda.can_device_access_peer(b, a))
        for a, b in pairs
    ]


def judge_peer_access(
    context: CheckContext, measured: Sequence[list[tuple[int, int, bool]]]
) -> Sequence[Finding]:
    """All pairs have it, or those that lack it are named with their link."""
    name, names = "peer-to-peer", device_names(context)
    pairs = [(a, b, on) for a, b, on in measured[0] if max(a, b) < len(names)]
    value = {f"{names[a]} - {names[b]}": on for a, b, on in pairs}
    lacking = [(a, b) for a, b, on in pairs if not on]
    if not lacking:
        return [passed(name, f"on all {len(pairs)} pairs", value)]
    shown = "; ".join(f"{names[a]} - {names[b]}{_by_link(context, a, b)}" for a, b in lacking[:6])
    text = f"off on {len(lacking)} of {len(pairs)} pairs: {shown}"
    remedy = (
        "All-reduce goes through host memory there. Consumer cards have none; else see ACS and "
        "IOMMU in the BIOS, and in virtual machines the pass-through of NVLink."
    )
    return [warned(name, text, remedy, value)]


def measure_all_reduce(seat: Seat) -> dict[str, Any]:
    """Wrong elements, bandwidth and latency of an all-reduce on all ranks."""
    import torch.distributed as dist

    return all_reduce_facts(seat, dist.group.WORLD)


def measure_pairs(seat: Seat) -> dict[str, dict[str, Any]]:
    """The same on each pair of ranks, one pair after another; by "a-b" for this rank's pairs."""
    import torch.distributed as dist

    found = {}
    for a, b in combinations(range(seat.size), 2):
        group = dist.new_group([a, b])  # every rank calls it, in this order
        if seat.rank in (a, b):
            seat.note(f"ranks {a} and {b}")
            found[f"{a}-{b}"] = all_reduce_facts(seat, group)
        seat.together.control.barrier(f"pair {a}-{b}")
    return found


def all_reduce_facts(seat: Seat, group: Any, contribution: int | None = None) -> dict[str, Any]:
    """Verify and time an all-reduce of a group. `contribution` is for `measure.wrong_sums`."""
    from drumline.bench.measure import all_reduce_bandwidth, wrong_sums

    on_gpu = seat.device.type == "cuda"
    wrong = wrong_sums(seat.device, group, contribution)
    small = all_reduce_bandwidth(8, group, seat.device, repeats=20)
    large = all_reduce_bandwidth((256 if on_gpu else 16) * _MIB, group, seat.device, repeats=5)
    return {
        "wrong_elements": wrong,
        "bus_gb_s": large.bus_gb_s,
        "size_bytes": large.size_bytes,
        "latency_us": small.seconds * 1e6,
    }


def judge_all_reduce(
    context: CheckContext, measured: Sequence[dict[str, Any]]
) -> Sequence[Finding]:
    """One line for all ranks."""
    links = [_link(context, a, b) for a, b in combinations(range(len(measured)), 2)]
    known = [link for link in links if link is not None and link.bandwidth_gb_s is not None]
    slowest = min(known, key=lambda link: link.bandwidth_gb_s or 0.0, default=None)
    name = f"all-reduce, {len(measured)} rank{'s' if len(measured) > 1 else ''}"
    return [_judge_group(context, name, dict(enumerate(measured)), slowest)]


def judge_pairs(
    context: CheckContext, measured: Sequence[dict[str, dict[str, Any]]]
) -> Sequence[Finding]:
    """One line for each pair."""
    names, findings = device_names(context), []
    for a, b in combinations(range(len(measured)), 2):
        key = f"{a}-{b}"
        facts = {rank: measured[rank][key] for rank in (a, b)}
        name = f"all-reduce {names[a]} - {names[b]}"
        findings.append(_judge_group(context, name, facts, _link(context, a, b)))
    return findings


def _judge_group(
    context: CheckContext, name: str, facts: Mapping[int, dict[str, Any]], link: Link | None
) -> Finding:
    """A wrong sum fails; a bandwidth far below the slowest link's warns."""
    first, names = next(iter(facts.values())), device_names(context)
    value = {**first, "should_gb_s": None if link is None else link.bandwidth_gb_s}
    wrong = {rank: one["wrong_elements"] for rank, one in facts.items() if one["wrong_elements"]}
    remedy = _GLOO_REMEDY if context.on_cpu else _NCCL_REMEDY
    if wrong:
        shown = ", ".join(f"{count:,} elements on {names[rank]}" for rank, count in wrong.items())
        return failed(name, f"the sum is wrong: {shown}", remedy, {**value, "wrong": wrong})
    if len(facts) == 1:
        return passed(name, "works; one rank has nobody to add to", value)
    rate = min(one["bus_gb_s"] for one in facts.values())
    text = f"sum right, {rate:.3g} GB/s"
    if link is not None and link.bandwidth_gb_s:
        text += f" of {link.bandwidth_gb_s:g} over {link_in_words(link).split(',')[0]}"
    text += f", {first['latency_us']:,.0f} µs for 8 bytes"
    least = OF_NVLINK if link is not None and link.kind != "pcie" else OF_PCIE
    if link is not None and link.bandwidth_gb_s and rate < least * link.bandwidth_gb_s:
        return warned(name, f"{text}: below {least:.0%} of the link", remedy, value)
    return passed(name, text, value)


def settings(context: CheckContext) -> Sequence[Finding]:
    """The variables that steer communication, and the interfaces they or NCCL would choose."""
    name, there = "communication settings", _interfaces()
    unknown = [
        f"{variable}={value}"
        for variable, value in context.variables.items()
        if variable.endswith("_SOCKET_IFNAME") and not _names_interface(value, there)
    ]
    shown = ", ".join(f"{key}={text}" for key, text in context.variables.items())
    value = {"variables": dict(context.variables), "interfaces": there}
    if unknown:
        text = f"{', '.join(unknown)} names no interface that is up; there are {', '.join(there)}"
        return [warned(name, text, "Correct or unset the variable.", value)]
    nets = f"interfaces {', '.join(there) or 'none but loopback'}"
    return [passed(name, f"{shown or 'no variables set'}; {nets}", value)]


def _interfaces() -> list[str]:
    """Names of the interfaces that are up, loopback last."""
    up = [name for name, stats in psutil.net_if_stats().items() if stats.isup]
    return sorted(up, key=lambda name: (name == "lo", name))


def _names_interface(value: str, there: Sequence[str]) -> bool:
    """NCCL's syntax: prefixes with commas, "=" before for whole names, "^" before to leave out."""
    if value.startswith("^"):
        return True
    whole, entries = value.startswith("="), value.lstrip("=").split(",")
    return any(
        name == entry if whole else name.startswith(entry) for entry in entries for name in there
    )


def _link(context: CheckContext, a: int, b: int) -> Link | None:
    first, second = context.devices[a].uuid, context.devices[b].uuid
    return None if first is None or second is None else context.machine.link(first, second)


def _by_link(context: CheckContext, a: int, b: int) -> str:
    link = _link(context, a, b)
    return "" if link is None else f" ({link_in_words(link)})"
