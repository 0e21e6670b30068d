"""What memory a config needs, asked without torch: the trace runs in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from drumline.config import RunConfig
from drumline.config.load import override
from drumline.errors import BadInput, DrumlineError, LaunchError
from drumline.planning.memory import MemoryEstimate, estimate, largest_micro_batch
from drumline.planning.memory_trace import MemoryTrace
from drumline.planning.plan import shares_among, spread

SELECTED_AT_MOST = 0.1
"""Part of the elements that masks select at the upper end of a range: dead latents, say."""

Tracer = Callable[[RunConfig, int, int | None, float, bool], MemoryTrace]
"""Of a config, its ranks, a micro-batch, the part that is selected, and whether it is on a GPU."""


class TracingProcess:
    """A Python of its own in which configs are traced one after another; needs no GPU.

    It starts with the first trace, which takes some seconds, and ends with the `with` block.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in __exit__

    def __enter__(self) -> TracingProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            with suppress(BrokenPipeError), self._process:
                pass  # closes its stdin, at which it ends, if it has not died before
        self._said.close()

    def __call__(
        self,
        config: RunConfig,
        world_size: int = 1,
        micro_batch: int | None = None,
        selected: float = 0.0,
        on_gpu: bool = True,
    ) -> MemoryTrace:
        """Trace the config's task; see `bench.memory_trace.trace_task`.

        Raises:
            BadInput: If the config names no task, or its step needs values.
            LaunchError: If the process died.
        """
        options = {"world_size": world_size, "micro_batch": micro_batch, "selected": selected}
        options["on_gpu"] = on_gpu
        return memory_trace_in(self.ask(config, options))

    def ask(self, config: RunConfig, options: dict[str, Any]) -> dict[str, Any]:
        """As a call, as plain data: the trace or an error, and the sources they come from.

        Raises:
            LaunchError: If the process died.
        """
        request = {"config": config.model_dump(mode="json"), "options": options}
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "drumline.bench.memory_trace"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                text=True,
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            line = ""
        if not line:
            raise LaunchError(
                f"The memory trace failed: {self._last_words()}",
                remedy="Plan without it, and report this with the config.",
            )
        found: dict[str, Any] = json.loads(line)
        return found

    def _last_words(self) -> str:
        assert self._process is not None
        code = self._process.wait()
        self._said.seek(0)
        return next(reversed(self._said.read().strip().splitlines()), f"exit code {code}")


def memory_trace_in(answer: dict[str, Any]) -> MemoryTrace:
    """The trace in an answer of a `TracingProcess`.

    Raises:
        DrumlineError: The one that is in its place.
    """
    if "error" in answer:
        error, kind = answer["error"], BadInput if answer["bad_input"] else DrumlineError
        raise kind(error["message"], remedy=error["remedy"])
    return MemoryTrace.from_dict(answer["trace"])


class MemoryAnswers:
    """Estimates of one config by number of ranks and device; each trace is made once.

    Args:
        config: The run.
        tracer: Makes the traces: a `TracingProcess`, say.
    """

    def __init__(self, config: RunConfig, tracer: Tracer) -> None:
        self._config, self._tracer = config, tracer
        self._made: dict[tuple[int, int | None, float, bool], MemoryTrace] = {}

    def need(self, world_size: int, capability: tuple[int, int] | None) -> MemoryEstimate:
        """What a rank needs on such a device."""
        return estimate_memory_requirement(
            self._config, capability, world_size=world_size, tracer=self._trace
        )

    def largest(
        self, world_size: int, capability: tuple[int, int] | None, capacity: int
    ) -> MemoryEstimate | None:
        """The estimate of the largest micro-batch that fits; None if none does."""
        return fit_micro_batch(
            self._config, capability, capacity, tracer=self._trace, world_size=world_size
        )[0]

    def smallest(self, world_size: int, capability: tuple[int, int] | None) -> MemoryEstimate:
        """The estimate of the smallest micro-batch."""
        least = self._config.task.granularity if self._config.task else 1
        trace = self._trace(self._config, world_size, least, 0.0, capability is not None)
        return estimate(trace, capability)

    def cut(self) -> MemoryAnswers:
        """The same questions about mode sharded."""
        return MemoryAnswers(override(self._config, ["distributed.mode=sharded"]), self._tracer)

    def _trace(
        self,
        config: RunConfig,
        world_size: int,
        micro_batch: int | None,
        selected: float,
        on_gpu: bool,
    ) -> MemoryTrace:
        share = max(spread(config, shares_among(config, world_size)))
        size = min(micro_batch or config.micro_batch or share, share)
        key = (world_size, size, selected, on_gpu)
        if key not in self._made:
            self._made[key] = self._tracer(config, world_size, size, selected, on_gpu)
        return self._made[key]


def estimate_memory_requirement(
    config: RunConfig,
    capability: tuple[int, int] | None = None,
    *,
    world_size: int = 1,
    micro_batch: int | None = None,
    tracer: Tracer | None = None,
) -> MemoryEstimate:
    """What one rank of a run needs on a device.

    Args:
        config: The run; model, batch, precision, optimizer and task all count.
        capability: Compute capability of the device; None for none.
        world_size: Ranks; more than one adds DDP's buckets and NCCL.
        micro_batch: Samples one forward holds; by default the config's, else the share.
        tracer: Makes the traces; by default a process of its own.
    """
    if tracer is None:
        with TracingProcess() as process:
            return estimate_memory_requirement(
                config, capability, world_size=world_size, micro_batch=micro_batch, tracer=process
            )
    on_gpu = capability is not None
    trace = tracer(config, world_size, micro_batch, 0.0, on_gpu)
    more = None
    if trace.selections:
        more = tracer(config, world_size, micro_batch, SELECTED_AT_MOST, on_gpu)
    return estimate(trace, capability, more=more)


def fit_micro_batch(
    config: RunConfig,
    capability: tuple[int, int] | None,
    capacity: int,
    *,
    tracer: Tracer,
    world_size: int = 1,
) -> tuple[MemoryEstimate | None, list[MemoryEstimate]]:
    """The largest micro-batch whose traced step fits; see `planning.memory.largest_micro_batch`.

    Args:
        config: The run; its own micro-batch is not looked at.
        capability: Compute capability of the device.
        capacity: Bytes free on the device.
        tracer: Makes the traces: a `TracingProcess`, say.
        world_size: Ranks.
    """
    on_gpu = capability is not None
    return largest_micro_batch(
        lambda size: estimate(tracer(config, world_size, size, 0.0, on_gpu), capability),
        capacity,
        at_most=max(spread(config, shares_among(config, world_size))),
        granularity=config.task.granularity if config.task else 1,
    )
