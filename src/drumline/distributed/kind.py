"""Whether a device is a GPU, or stands for one: the one place that code asks which does otherwise
there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_stands_for_gpu: ContextVar[bool] = ContextVar("_stands_for_gpu", default=False)


def is_gpu(device: torch.device) -> bool:
    """Whether what is done on a device is done as on a GPU."""
    return device.type == "cuda" or _stands_for_gpu.get()


@contextmanager
def standing_for_gpu() -> Iterator[None]:
    """Within it every device is taken for a GPU. For traces, which know shapes and no device."""
    before = _stands_for_gpu.set(True)
    try:
        yield
    finally:
        _stands_for_gpu.reset(before)
