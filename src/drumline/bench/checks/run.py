"""Makes all checks, in order, each within its time: a check that breaks is a finding, too."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from drumline.bench.checks.check import UNREAD, CheckContext, HostCheck, RankCheck
from drumline.bench.checks.finding import Finding, Status, failed, skipped
from drumline.bench.checks.machine import read_torch
from drumline.bench.checks.ranks import check_on_ranks
from drumline.bench.checks.registry import HOST_CHECKS, RANK_CHECKS
from drumline.config import RunConfig
from drumline.config.environment import communication_variables
from drumline.hardware import Device, Machine, resolve_devices
from drumline.planning import PlannedDevice
from drumline.planning.availability import Need, why_gone, why_held, why_in_use, why_unwell
from drumline.planning.devices import choose_devices, planned

OnRanks = Callable[[Sequence[RankCheck], CheckContext], Iterator[Finding]]


def prepare(
    machine: Machine,
    gpus: str = "all",
    config: RunConfig | None = None,
    occupied: Mapping[str, object] | None = None,
    *,
    quick: bool = False,
) -> CheckContext:
    """What is checked: the devices named, or all that can be measured.

    Args:
        machine: What is there.
        gpus: "all" or "auto" leave out devices that are held, in use, unwell or simulated; devices
            named are measured as they are.
        config: A training whose fit is asked for; its runs_dir is where the disk is tried.
        occupied: Devices that somebody holds, by UUID, and who; by default none.
        quick: Leave out what is slow.

    Raises:
        DeviceError: If devices are named that are not there, or as many as asked for are not free.
    """
    occupied = occupied or {}
    chosen, left_out = _devices(machine, gpus.strip(), Need(occupied=occupied))
    return CheckContext(
        machine=machine,
        torch=UNREAD,
        devices=tuple(chosen),
        left_out=left_out,
        occupied=occupied,
        folder=config.runs_dir if config else Path("runs"),
        variables=communication_variables(),
        config=config,
        quick=quick,
    )


def run_checks(
    context: CheckContext,
    host_checks: Sequence[HostCheck] = HOST_CHECKS,
    rank_checks: Sequence[RankCheck] = RANK_CHECKS,
    on_ranks: OnRanks = check_on_ranks,
) -> Iterator[Finding]:
    """All findings, each as soon as it is there. Until the ranks have started there is time to
    look at the host.
    """
    to_measure, left_out = select(rank_checks, context)
    measured = ahead(on_ranks(to_measure, context)) if to_measure else iter(())
    _import_torch()
    context = with_torch(context)
    yield from _look_at_host([check for check in host_checks if not check.heavy], context)
    yield from left_out
    if to_measure and not context.on_cpu and not context.torch.available:
        reason = "torch does not reach the GPUs"
        measured = (replace(skipped(c.name, reason), group=c.group) for c in to_measure)
    yield from measured
    yield from _look_at_host([check for check in host_checks if check.heavy], context)


def _look_at_host(checks: Sequence[HostCheck], context: CheckContext) -> Iterator[Finding]:
    for check in checks:
        if check.slow and context.quick:
            yield replace(skipped(check.name, "left out by --quick"), group=check.group)
        else:
            yield from look(check, context)


def _import_torch() -> None:
    """Wait until the launcher's thread has imported torch: two threads that do so on different ways
    may each meet parts that are not finished. Not in this thread, where Ctrl-C would break into it.
    """

    def work() -> None:
        with suppress(Exception):  # who uses it tells
            import_module("drumline.launch.agent")

    thread = threading.Thread(target=work, name="import of torch", daemon=True)
    thread.start()
    thread.join()


def with_torch(context: CheckContext) -> CheckContext:
    """The context with what torch says, which wakes the driver."""
    return replace(context, torch=read_torch()) if context.torch is UNREAD else context


def ahead(items: Iterator[Finding]) -> Iterator[Finding]:
    """The same items, made in a thread that begins at once. What it raises is raised here."""
    made: queue.SimpleQueue[Finding | BaseException | None] = queue.SimpleQueue()

    def make() -> None:
        try:
            for item in items:
                made.put(item)
            made.put(None)
        except BaseException as error:
            made.put(error)

    threading.Thread(target=make, name="checks on ranks", daemon=True).start()

    def taken() -> Iterator[Finding]:
        while (item := made.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    return taken()


def select(
    checks: Sequence[RankCheck], context: CheckContext
) -> tuple[list[RankCheck], list[Finding]]:
    """The checks that are to be measured, and why the others are not."""
    to_measure, left_out = [], []
    why_not = _why_not_measured(context)
    for check in checks:
        reason = why_not or check.applies(context)
        if not reason and check.slow and context.quick:
            reason = "left out by --quick"
        if reason:
            left_out.append(replace(skipped(check.name, reason), group=check.group))
        else:
            to_measure.append(check)
    return to_measure, left_out


def look(check: HostCheck, context: CheckContext) -> list[Finding]:
    """The findings of one host check. One that raises or hangs is a failure with the reason."""
    start, found, errors = time.perf_counter(), list[Finding](), list[Exception]()

    def work() -> None:
        try:
            found.extend(check.look(context))
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=work, name=f"check {check.name}", daemon=True)
    thread.start()
    thread.join(check.timeout_s)
    if thread.is_alive():
        text = f"did not finish within {check.timeout_s:g} s"
        result = [failed(check.name, text, "See what it waits for: a network disk, or the driver.")]
    elif errors:
        text = f"the check broke: {type(errors[0]).__name__}: {errors[0]}".rstrip(": ")
        result = [failed(check.name, text, "Please report this; the other checks went on.")]
    else:
        result = list(found)
    seconds = time.perf_counter() - start
    return [replace(finding, group=check.group, seconds=seconds) for finding in result]


def exit_code(findings: Sequence[Finding]) -> int:
    """0 where no check failed, else 1."""
    return int(any(finding.status is Status.FAIL for finding in findings))


def _why_not_measured(context: CheckContext) -> str:
    """Why nothing can be measured; empty where ranks can start."""
    if not context.devices:
        reasons = "; ".join(dict.fromkeys(context.left_out.values()))
        return f"no device can be measured: {reasons}"
    if any(device.simulated for device in context.devices):
        return "simulated devices cannot be measured"
    return ""


def _devices(machine: Machine, gpus: str, need: Need) -> tuple[list[PlannedDevice], dict[str, str]]:
    if gpus not in ("all", "auto"):
        if gpus.startswith("cpu") or gpus.isdigit():
            return choose_devices(gpus, machine, need.occupied, at_most=2**30)[0], {}
        named = resolve_devices(gpus.removesuffix(","), machine)
        return [planned(device) for device in named], {}
    if not machine.devices:
        return choose_devices("cpu:2", machine, (), at_most=2)[0], {}
    left_out = {device.uuid: why for device in machine.devices if (why := _unfit(device, need))}
    fit = [device for device in machine.devices if device.uuid not in left_out]
    return [planned(device) for device in fit], left_out


def _unfit(device: Device, need: Need) -> str | None:
    return why_gone(device) or why_held(device, need) or why_unwell(device) or why_in_use(device)
