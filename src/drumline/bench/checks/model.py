"""Whether a training's model fits its devices: the one place that asks the memory estimate."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from drumline.bench.checks.check import CheckContext, device_names
from drumline.bench.checks.finding import Finding, failed, passed, skipped
from drumline.bench.memory import TracingProcess, estimate_memory_requirement
from drumline.bench.trace_store import users_store
from drumline.bench.traces import Traces
from drumline.config import RunConfig
from drumline.errors import BadInput
from drumline.planning.availability import gib, memory_to_give

NAME = "model fits"


def needed_memory_bytes(config: RunConfig, context: CheckContext) -> int:
    """What the training needs on each device: torch's reserved memory and CUDA's context.

    Raises:
        BadInput: If it has no task, or a step that cannot be traced.
    """
    first = context.devices[0].uuid if context.devices else None
    there = {device.uuid: device.compute_capability for device in context.machine.usable}
    with TracingProcess() as process:
        found = estimate_memory_requirement(
            config,
            there.get(first or ""),
            world_size=max(1, len(context.devices)),
            tracer=Traces(users_store(), process).memory,
        )
    return int(found.reserved_peak + found.context)


def model_fits(
    context: CheckContext,
    needed: Callable[[RunConfig, CheckContext], int] = needed_memory_bytes,
) -> Sequence[Finding]:
    """The need beside what each device has free."""
    if context.config is None:
        return []
    try:
        bytes_needed = needed(context.config, context)
    except BadInput as error:
        return [skipped(NAME, f"no estimate: {error.message}")]
    if context.on_cpu:
        there: list[int | None] = [context.machine.host.memory_available_bytes]
        names, bytes_needed = ["host"], bytes_needed * len(context.devices)
    else:
        by_uuid = {device.uuid: device for device in context.machine.usable}
        units = [by_uuid.get(device.uuid or "") for device in context.devices]
        there = [None if unit is None else memory_to_give(unit) for unit in units]
        names = device_names(context)
    value = {"needed_bytes": bytes_needed, "free_bytes": dict(zip(names, there, strict=True))}
    short = [
        f"{name} has {gib(free)}, short by {gib(bytes_needed - free)}"
        for name, free in zip(names, there, strict=True)
        if free is not None and free < bytes_needed
    ]
    text = f"{context.config.name} needs {gib(bytes_needed)}"
    if short:
        remedy = "Lower micro_batch, or choose devices with more memory."
        return [failed(NAME, f"{text}; {'; '.join(short)}", remedy, value)]
    least = min((free for free in there if free is not None), default=None)
    shown = "free memory is not reported" if least is None else f"{gib(least)} are free"
    return [passed(NAME, f"{text} on each, {shown}" if not context.on_cpu else f"{text}, {shown}",
                   value)]  # fmt: skip
