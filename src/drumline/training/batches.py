"""Batches as nested containers of tensors: moving them and cutting them along the samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor


class Samples(ABC):
    """Samples that are more than rows of tensors, such as sequences with their first states. They
    say themselves how they are moved and cut.
    """

    @abstractmethod
    def to(self, device: torch.device) -> Samples:
        """The samples on a device."""

    @abstractmethod
    def narrow(self, start: int, length: int) -> Samples:
        """The samples start..start+length-1, as views."""

    @abstractmethod
    def clone(self) -> Samples:
        """Copies that hold no more memory than they show."""


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with all its tensors on a device."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Samples):
        return batch.to(device)
    return _map(batch, lambda item: to_device(item, device))


def narrow(batch: Any, start: int, length: int) -> Any:
    """The samples start..start+length-1 of a batch, as views. Non-tensors are kept as they are,
    except lists of plain values with one entry a sample, which are cut too.
    """
    if isinstance(batch, Tensor):
        return batch.narrow(0, start, length)
    if isinstance(batch, Samples):
        return batch.narrow(start, length)
    plain = isinstance(batch, list | tuple) and not hasattr(batch, "_fields")
    if plain and batch and not _holds_tensors(batch):
        return type(batch)(batch[start : start + length])
    return _map(batch, lambda item: narrow(item, start, length))


def cloned(batch: Any) -> Any:
    """The batch with copies of its tensors, which hold no more memory than they show."""
    return batch.clone() if isinstance(batch, Tensor | Samples) else _map(batch, cloned)


def layout(batch: Any) -> Hashable:
    """Shapes and dtypes of a batch's tensors but for the number of samples."""
    if isinstance(batch, Tensor):
        return (tuple(batch.shape[1:]), batch.dtype)
    if isinstance(batch, dict):
        return tuple((str(key), layout(item)) for key, item in batch.items())
    if isinstance(batch, list | tuple):
        return tuple(layout(item) for item in batch) if _holds_tensors(batch) else None
    return None


def _map(batch: Any, function: Any) -> Any:
    if isinstance(batch, dict):
        return {key: function(item) for key, item in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(function, batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map(function, batch))
    return batch


def _holds_tensors(batch: Any) -> bool:
    if isinstance(batch, dict):
        return any(map(_holds_tensors, batch.values()))
    if isinstance(batch, list | tuple):
        return any(map(_holds_tensors, batch))
    return isinstance(batch, Tensor)
