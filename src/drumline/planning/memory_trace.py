"""What a traced training step asked of the allocator, as plain numbers: no torch, no model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from drumline.planning.allocator import Block, CachingAllocator

CATEGORIES = (
    "parameters",
    "buffers",
    "gradients",
    "optimizer",
    "buckets",
    "batch",
    "activations",
    "temporaries",
    "workspace",
)


@dataclass(frozen=True)
class MemoryTrace:
    """Allocations and frees of a few optimizer steps, in order.

    Attributes:
        micro_batch: Samples one forward held.
        share: Samples of the rank in a step.
        world_size: Ranks; with more than one, what they exchange counts, too.
        steps: Optimizer steps traced.
        sizes: Bytes of each allocation; 0 for a workspace, whose size the device decides.
        categories: What each allocation is, one of `CATEGORIES`.
        workspaces: Names of the workspaces, by the number of their allocation.
        events: k + 1 where allocation k is made, -(k + 1) where it is freed, 0 where free segments
            are given back to the driver, as torch does before it records a CUDA graph.
        selections: Operators whose result's size depends on values (a boolean mask, say).
        selected: The part of its elements that such an operator was taken to select.
        streams: Numbers of streams other than the computing one, and of pools that CUDA graphs were
            recorded in, by the number of their allocation.
        held: For each 0 in `events`, the numbers of the pools whose graphs are alive then.
        untraced: What the trace left out, in words.
    """

    micro_batch: int
    share: int
    world_size: int
    steps: int
    sizes: tuple[int, ...]
    categories: tuple[str, ...]
    workspaces: dict[int, str]
    events: tuple[int, ...]
    selections: tuple[str, ...] = ()
    selected: float = 0.0
    streams: dict[int, int] = field(default_factory=dict)
    held: tuple[tuple[int, ...], ...] = ()
    untraced: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON; categories as their numbers."""
        return {
            **asdict(self),
            "categories": [CATEGORIES.index(name) for name in self.categories],
            "workspaces": {str(number): name for number, name in self.workspaces.items()},
            "streams": {str(number): stream for number, stream in self.streams.items()},
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> MemoryTrace:
        """Back from `as_dict`."""
        return cls(
            **{
                **data,
                "sizes": tuple(data["sizes"]),
                "categories": tuple(CATEGORIES[number] for number in data["categories"]),
                "workspaces": {int(number): name for number, name in data["workspaces"].items()},
                "streams": {int(number): stream for number, stream in data["streams"].items()},
                "held": tuple(tuple(pools) for pools in data["held"]),
                "events": tuple(data["events"]),
                "selections": tuple(data["selections"]),
                "untraced": tuple(data["untraced"]),
            }
        )


@dataclass(frozen=True)
class Replay:
    """A trace played through the caching allocator of one kind of device.

    Attributes:
        allocated_peak: Most bytes in blocks in use, as torch.cuda.max_memory_allocated.
        reserved_peak: Most bytes in segments, as torch.cuda.max_memory_reserved.
        at_peak: Bytes of each category, as asked for, when most were in use.
        segments: Sizes of the segments at the end, in the order they were made.
    """

    allocated_peak: int
    reserved_peak: int
    at_peak: dict[str, int]
    segments: tuple[int, ...]


def replay(trace: MemoryTrace, workspace_bytes: Callable[[str], int]) -> Replay:
    """Play a trace through the caching allocator.

    Args:
        trace: What was asked for.
        workspace_bytes: Size of a named workspace on the device.
    """
    sizes = list(trace.sizes)
    for number, name in trace.workspaces.items():
        sizes[number] = workspace_bytes(name)
    allocator, blocks = CachingAllocator(), dict[int, Block]()
    now, at_peak, peak = Counter[str](), Counter[str](), -1
    held = iter(trace.held)
    for event in trace.events:
        if event == 0:
            allocator.empty(next(held))
            continue
        number = abs(event) - 1
        if sizes[number] == 0:
            continue
        if event > 0:
            blocks[number] = allocator.allocate(sizes[number], trace.streams.get(number, 0))
            now[trace.categories[number]] += sizes[number]
        else:
            allocator.release(blocks.pop(number))
            now[trace.categories[number]] -= sizes[number]
        if allocator.allocated > peak:
            peak, at_peak = allocator.allocated, Counter(now)
    return Replay(
        allocator.allocated_peak,
        allocator.reserved_peak,
        {name: at_peak[name] for name in CATEGORIES},
        tuple(allocator.segments),
    )
