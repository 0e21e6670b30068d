"""What a step asks the device for: on a GPU a value read on the host waits for all that is queued,
and while the host waits it queues nothing more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from sae_stand_ins import make_task
from torch.utils._python_dispatch import TorchDispatchMode

from drumline.tasks.sae.statistics import DeadLatents
from drumline.training.order import mix

ARCHITECTURES = ["topk", "batchtopk", "jumprelu", "gated", "standard"]
aten = torch.ops.aten
WAITS = {
    aten._local_scalar_dense.default: "a value read on the host",
    aten.nonzero.default: "a size that depends on values",
    aten.masked_select.default: "a size that depends on values",
    aten.lift_fresh.default: "a value sent to the device",
}


class Waits(TorchDispatchMode):
    """Notes what would wait for a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        by_mask = func is aten.index.Tensor and any(
            index is not None and index.dtype is torch.bool for index in args[1]
        )
        if func in WAITS or by_mask:
            self.found.append(WAITS.get(func, "an index by a mask"))
        return func(*args, **(kwargs or {}))


def step_of(architecture: str, rows: torch.Tensor, **keys: Any) -> Callable[[], None]:
    task = make_task(rows, architecture=architecture, latents=16, k=3, **keys)
    sae = task.build_model().double()
    task.initialise(sae)
    optimizer = torch.optim.Adam(sae.parameters())

    def step() -> None:
        losses = task.loss(sae, rows)
        losses.loss_sum.backward()
        task.after_gradients(sae)
        task.after_step(sae, optimizer, losses.step_sums, len(rows))

    return step


@pytest.mark.parametrize("prefixes", [None, [4, 8, 16]])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_step_waits_for_nothing(architecture: str, prefixes: list[int] | None) -> None:
    keys: dict[str, Any] = {"evaluation": {"samples": 0}}
    if architecture in ("topk", "batchtopk"):
        keys["aux_k"] = 0  # what the dead latents model takes their numbers
    if prefixes:
        keys["matryoshka"] = prefixes
    rows = torch.randn(40, 6, generator=torch.Generator().manual_seed(1)).double()
    step = step_of(architecture, rows, **keys)
    step()
    with Waits() as waits:
        step()
    assert waits.found == []


@pytest.mark.gpu
def test_dead_latents_are_found_on_a_gpu_without_waiting_for_later_work() -> None:
    seeds = torch.tensor([mix(3, number) % 5 for number in range(4096)], device="cuda")
    dead = DeadLatents(seeds == 0)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        numbers = dead.numbers()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert numbers.tolist() == [n for n in range(4096) if mix(3, n) % 5 == 0]
    assert float(dead.count) == len(numbers)
    assert DeadLatents(seeds == 9).numbers().tolist() == []
