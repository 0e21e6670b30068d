"""A batch of the right shapes from a source, reading two samples and no more."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from drumline.training.source import Cursor, MapSource, ShareOfStep, Source

READ = 2
"""Samples read: with one, a size of 1 could be mistaken for the number of samples."""


def sample(source: Source) -> tuple[Any, int]:
    """A small batch as the source puts it together, and its number of samples."""
    if isinstance(source, MapSource):
        numbers = [index % len(source.dataset) for index in range(READ)]
        read = getattr(source.dataset, "__getitems__", None)
        items = read(numbers) if read else [source.dataset[number] for number in numbers]
        return source.collate(items), READ
    share = ShareOfStep(0, (1,), READ)
    batch = next(iter(source.open(share, Cursor())))
    return batch.data, batch.count


def enlarged(batch: Any, samples: int, wanted: int) -> Any:
    """A batch of `wanted` samples without values, shaped like one of `samples`."""
    if isinstance(batch, Tensor):
        if batch.dim() == 0 or batch.size(0) != samples:
            return torch.empty(batch.shape, dtype=batch.dtype)
        return torch.empty((wanted, *batch.shape[1:]), dtype=batch.dtype)
    if isinstance(batch, dict):
        return {key: enlarged(item, samples, wanted) for key, item in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(enlarged(item, samples, wanted) for item in batch))
    if isinstance(batch, list | tuple):
        if len(batch) == samples and not any(isinstance(item, Tensor) for item in batch):
            return type(batch)(batch[index % samples] for index in range(wanted))
        return type(batch)(enlarged(item, samples, wanted) for item in batch)
    return batch
