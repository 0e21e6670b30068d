"""A step that is repeated, recorded once as a CUDA graph: one launch instead of hundreds.

A graph reads and writes fixed addresses. What a step carries on to the next is therefore held in
tensors of its own here, and copied into them at the end of every step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Recorder = Callable[[Callable[[], None]], Callable[[], object]]
"""Takes what is to be recorded, and gives what does it again."""


def gpu_recorder() -> Recorder:
    """Records kernels without running them. All that it records is to be done in the order it was
    recorded in, and shares memory. A body must have been run before in some way, and must neither
    wait for the device nor bring anything to it.
    """
    pool = torch.cuda.graph_pool_handle()

    def record(body: Callable[[], None]) -> Callable[[], object]:
        graph = torch.cuda.CUDAGraph()
        # Other threads (NCCL's watchdog) may go on using the device meanwhile.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            body()
        return graph.replay

    return record


def recorded(
    step: Callable[[], None],
    carried: Callable[[], Mapping[str, Tensor]],
    bind: Callable[[Mapping[str, Tensor]], None],
    record: Recorder,
) -> Callable[[], object]:
    """What does one step, from where the last one ended.

    Args:
        step: One step, which may replace what is carried by new tensors of the same shapes.
        carried: All that a step hands on, by name.
        bind: Makes given tensors, not copies, what is carried.
        record: Records it.
    """
    fixed = {name: tensor.clone() for name, tensor in carried().items()}
    bind(fixed)

    def body() -> None:
        step()
        after = {name: _apart(tensor, fixed, name) for name, tensor in carried().items()}
        for name, tensor in after.items():
            if tensor is not fixed[name]:
                fixed[name].copy_(tensor)
        bind(fixed)

    return record(body)


def _apart(tensor: Tensor, fixed: Mapping[str, Tensor], name: str) -> Tensor:
    """The tensor, or a copy of one that lies in what is about to be overwritten."""
    if tensor is fixed[name]:
        return tensor
    overwritten = [each.untyped_storage() for each in fixed.values()]
    storage = tensor.untyped_storage()
    return tensor.clone() if any(storage is each for each in overwritten) else tensor
