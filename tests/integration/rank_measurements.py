"""Measurements for ranks of a test: some crash, hang, or give a wrong contribution."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from drumline.bench.checks import Seat
from drumline.bench.checks.links import all_reduce_facts


def crash_on_one(seat: Seat) -> int:
    if seat.rank == 1:
        raise ValueError("broken on purpose")
    return seat.rank


def killed_on_zero(seat: Seat) -> int:
    if seat.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()
    return 0


def hang_together(seat: Seat) -> int:
    seat.note("the second barrier")
    if seat.rank == 0:
        seat.together.barrier("never joined by rank 1")
    threading.Event().wait()
    return 0


def wrong_contribution(seat: Seat) -> dict[str, Any]:
    import torch.distributed as dist

    return all_reduce_facts(seat, dist.group.WORLD, contribution=7 if seat.rank == 1 else None)


def known_values(seat: Seat) -> list[int]:
    return [seat.rank, seat.size, int(seat.together.all_reduce(_one(seat)).item())]


def _one(seat: Seat) -> Any:
    import torch

    return torch.full((1,), float(seat.rank + 1), device=seat.device)
