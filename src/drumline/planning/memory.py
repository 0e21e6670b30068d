"""From a traced step to what a run needs on a kind of device, and the largest micro-batch there.

All is arithmetic on plain numbers; who makes the trace is `bench.memory`'s matter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from drumline.planning.allocator import LARGE_ROUNDING
from drumline.planning.memory_constants import DeviceConstants, device_constants
from drumline.planning.memory_trace import MemoryTrace, Replay, replay

TOLERANCE = 0.05
"""What the prediction of the reserved peak is held to; see benchmarks/memory_estimate."""


@dataclass(frozen=True)
class MemoryEstimate:
    """What one rank needs on its device, in bytes.

    The parts are what was in use when most was. `reserved_peak` is what
    torch.cuda.max_memory_reserved will show; `context` comes on top, outside torch's allocator.

    Attributes:
        micro_batch: Samples one forward holds.
        parameters: Weights and buffers of the model.
        gradients: One set.
        optimizer: The optimizer's state.
        activations: What the forward keeps, the batch, and what passes.
        buckets: DDP's gradient buckets.
        workspace: cuBLAS's and cuDNN's, inside the allocator.
        context: CUDA's context and NCCL's buffers, outside.
        allocated_peak: All of these inside the allocator, each rounded as it rounds.
        reserved_peak: Allocated, plus what lies free inside segments.
        low: Least reserved memory with which a step can do: the allocator frees its cache and
            tries again before it gives up.
        high: Reserved, by the worst that is known.
        unknown: What the numbers leave out, in words.
    """

    micro_batch: int
    parameters: int
    gradients: int
    optimizer: int
    activations: int
    buckets: int
    workspace: int
    context: int
    allocated_peak: int
    reserved_peak: int
    low: int
    high: int
    unknown: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """What nvidia-smi will show for the process."""
        return self.reserved_peak + self.context

    def as_dict(self) -> dict[str, Any]:
        """Plain data for plan.json."""
        return {**asdict(self), "total": self.total}

    def explain(self) -> list[str]:
        """Every derived number with its arithmetic, a line each."""
        within = self.allocated_peak - self._sum_of_parts()
        free = self.reserved_peak - self.allocated_peak
        return [
            "in use at the peak = parameters + gradients + optimizer + activations + buckets"
            f" + workspace = {' + '.join(map(_mib, self._parts()))} = {_mib(self._sum_of_parts())}",
            f"allocated = in use + rounding to 512 B = {_mib(self._sum_of_parts())} + "
            f"{_mib(within)} = {_mib(self.allocated_peak)}",
            f"reserved = allocated + free inside segments = {_mib(self.allocated_peak)} + "
            f"{_mib(free)} = {_mib(self.reserved_peak)}",
            f"on the device = reserved + context = {_mib(self.reserved_peak)} + "
            f"{_mib(self.context)} = {_mib(self.total)}",
            f"range of reserved: {_mib(self.low)} (no free blocks) to {_mib(self.high)}",
        ]

    def _parts(self) -> tuple[int, ...]:
        return (
            self.parameters,
            self.gradients,
            self.optimizer,
            self.activations,
            self.buckets,
            self.workspace,
        )

    def _sum_of_parts(self) -> int:
        return sum(self._parts())


@dataclass(frozen=True)
class Fit:
    """Whether an estimate fits a device, with what is left (negative: short by so much)."""

    fits: bool
    needed: int
    capacity: int

    @property
    def left(self) -> int:
        """Bytes left on the device."""
        return self.capacity - self.needed


def estimate(
    trace: MemoryTrace,
    capability: tuple[int, int] | None = None,
    *,
    more: MemoryTrace | None = None,
    constants: DeviceConstants | None = None,
) -> MemoryEstimate:
    """What a traced step needs on devices of a compute capability.

    Args:
        trace: The step as it goes when operators that select by value select nothing unusual.
        capability: Of the device; None for none, which has neither workspaces nor a context.
        more: The same step when they select more, for the upper end of the range.
        constants: Instead of the known ones.
    """
    known = constants or device_constants(capability)
    played = replay(trace, lambda name: workspace_bytes(known, name))
    worst = played if more is None else replay(more, lambda name: workspace_bytes(known, name))
    at = played.at_peak
    return MemoryEstimate(
        micro_batch=trace.micro_batch,
        parameters=at["parameters"] + at["buffers"],
        gradients=at["gradients"],
        optimizer=at["optimizer"],
        activations=at["activations"] + at["temporaries"] + at["batch"],
        buckets=at["buckets"],
        workspace=at["workspace"],
        context=known.context + (known.nccl if trace.world_size > 1 else 0),
        allocated_peak=played.allocated_peak,
        reserved_peak=played.reserved_peak,
        low=-(-played.allocated_peak // LARGE_ROUNDING) * LARGE_ROUNDING,
        high=_high(played, worst),
        unknown=_unknown(trace, more, known),
    )


def workspace_bytes(constants: DeviceConstants, name: str) -> int:
    """Size of a workspace that a trace names: the library, and the thread that uses it."""
    library = name.partition(":")[0]
    known = {"cublas": constants.cublas_workspace, "cublaslt": constants.cublaslt_workspace}
    return known.get(library, 0)


def fits(needed: MemoryEstimate, capacity: int) -> Fit:
    """Whether a device whose free memory is `capacity` bytes holds the run, context included."""
    return Fit(needed.total <= capacity, needed.total, capacity)


def largest_micro_batch(
    estimate_at: Callable[[int], MemoryEstimate],
    capacity: int,
    at_most: int,
    granularity: int = 1,
) -> tuple[MemoryEstimate | None, list[MemoryEstimate]]:
    """The largest micro-batch that fits, found with few estimates.

    Memory grows with the micro-batch almost in a line, so the next size tried lies where a line
    through the nearest two estimates meets the capacity. The answer was itself estimated.

    Args:
        estimate_at: The estimate for a micro-batch.
        capacity: Bytes free on the device.
        at_most: The rank's share.
        granularity: Micro-batches are whole multiples, but for `at_most` itself.

    Returns:
        The estimate of the answer, None if not even the smallest fits; and all that were made.
    """
    made: list[MemoryEstimate] = []

    def tried(size: int) -> MemoryEstimate:
        made.append(estimate_at(size))
        return made[-1]

    above = tried(at_most)
    if fits(above, capacity).fits:
        return above, made
    if at_most <= granularity:
        return None, made
    below = tried(granularity)
    if not fits(below, capacity).fits:
        return None, made
    while (size := _between(below, above, capacity, granularity)) is not None:
        middle = tried(size)
        if fits(middle, capacity).fits:
            below = middle
        else:
            above = middle
    return below, made


def _between(
    below: MemoryEstimate, above: MemoryEstimate, capacity: int, granularity: int
) -> int | None:
    """A size strictly between two others, near where a line meets the capacity; None if none."""
    low, high = below.micro_batch // granularity, -(-above.micro_batch // granularity)
    gap = high - low
    if gap <= max(1, low // 64):  # within 2 % is near enough
        return None
    slope = (above.total - below.total) / (above.micro_batch - below.micro_batch)
    met = (
        low + gap // 2 if slope <= 0 else int(low + (capacity - below.total) / slope / granularity)
    )
    near = max(1, gap // 16)  # keeps the line from creeping up on one side
    return min(max(met, low + near), high - near) * granularity


def _high(played: Replay, worst: Replay) -> int:
    return max(round(played.reserved_peak * (1 + TOLERANCE)), worst.reserved_peak)


def _unknown(
    trace: MemoryTrace, more: MemoryTrace | None, constants: DeviceConstants
) -> tuple[str, ...]:
    lines = list(trace.untraced)
    if trace.selections:
        names = ", ".join(trace.selections)
        lines.append(
            f"sizes that depend on values ({names}): taken as {trace.selected:.0%} of the "
            "elements" + (f", at the upper end {more.selected:.0%}" if more else "")
        )
    if constants.on_host:
        lines.append("the CPU's own operators and its allocator: counted as on CUDA, a rough guide")
    elif not constants.is_measured:
        lines.append("context and NCCL buffers: a guess, not measured on such a card")
    return tuple(lines)


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
