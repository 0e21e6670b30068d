"""What memory a config needs, asked without torch: the trace runs in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from drumline.config import RunConfig
from drumline.errors import BadInput, DrumlineError, LaunchError
from drumline.planning.memory import MemoryEstimate, estimate, largest_micro_batch
from drumline.planning.memory_trace import MemoryTrace
from drumline.planning.plan import spread

SELECTED_AT_MOST = 0.1
"""Part of the elements that masks select at the upper end of a range: dead latents, say."""

Tracer = Callable[[RunConfig, int, int | None, float], MemoryTrace]


def trace_in_subprocess(
    config: RunConfig, world_size: int = 1, micro_batch: int | None = None, selected: float = 0.0
) -> MemoryTrace:
    """Trace the config's task in a Python of its own; takes some seconds, needs no GPU.

    Raises:
        BadInput: If the config names no task, or its step needs values.
        LaunchError: If the process died.
    """
    options = {"world_size": world_size, "micro_batch": micro_batch, "selected": selected}
    request = {"config": config.model_dump(mode="json"), "options": options}
    done = subprocess.run(
        [sys.executable, "-m", "drumline.bench.memory_trace"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise LaunchError(
            f"The memory trace failed: {last}",
            remedy="Plan without it, and report this with the config.",
        ) from None
    if "error" in answer:
        error = answer["error"]
        kind = BadInput if done.returncode == BadInput.exit_code else DrumlineError
        raise kind(error["message"], remedy=error["remedy"])
    return MemoryTrace.from_dict(answer["trace"])


def estimate_memory_requirement(
    config: RunConfig,
    capability: tuple[int, int] | None = None,
    *,
    world_size: int = 1,
    micro_batch: int | None = None,
    tracer: Tracer = trace_in_subprocess,
) -> MemoryEstimate:
    """What one rank of a run needs on a device.

    Args:
        config: The run; model, batch, precision, optimizer and task all count.
        capability: Compute capability of the device; None for none.
        world_size: Ranks; more than one adds DDP's buckets and NCCL.
        micro_batch: Samples one forward holds; by default the config's, else the share.
        tracer: Makes the trace.
    """
    trace = tracer(config, world_size, micro_batch, 0.0)
    more = None
    if trace.selections:
        more = tracer(config, world_size, micro_batch, SELECTED_AT_MOST)
    return estimate(trace, capability, more=more)


def fit_micro_batch(
    config: RunConfig,
    capability: tuple[int, int] | None,
    capacity: int,
    *,
    world_size: int = 1,
    tracer: Tracer = trace_in_subprocess,
) -> tuple[MemoryEstimate | None, list[MemoryEstimate]]:
    """The largest micro-batch whose traced step fits; see `planning.memory.largest_micro_batch`.

    Args:
        config: The run; its own micro-batch is not looked at.
        capability: Compute capability of the device.
        capacity: Bytes free on the device.
        world_size: Ranks.
        tracer: Makes the traces.
    """
    return largest_micro_batch(
        lambda size: estimate(tracer(config, world_size, size, 0.0), capability),
        capacity,
        at_most=max(spread(config, world_size)),
        granularity=config.task.granularity if config.task else 1,
    )
