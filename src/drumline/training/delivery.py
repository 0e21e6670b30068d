"""Bringing batches to the device while it still works on the step before."""

from __future__ import annotations

from typing import Any

import torch

from drumline.training.batches import to_device


class Delivery:
    """Brings the batch of each step to a device.

    On a GPU batches are copied in a stream of their own: a copy begins once the batch before has
    been read, beside what is left of its step, the update above all, and beside whatever the host
    is late with. A batch takes the memory of the one before it, so there is one at a time.

    Args:
        device: Where steps are computed.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        self._released = False
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._there = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._free = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def bring(self, batch: Any) -> Any:
        """The batch on the device, for the current stream. Let go of the one before first."""
        if self._stream is None:
            return to_device(batch, self._device)
        computing = torch.cuda.current_stream(self._device)
        if self._released:
            self._stream.wait_event(self._free)
        else:
            self._stream.wait_stream(computing)
        self._released = False
        with torch.cuda.stream(self._stream):
            brought = to_device(batch, self._device)
        self._there.record(self._stream)
        computing.wait_event(self._there)
        return brought

    def release(self) -> None:
        """Let go of the last batch: all that reads it has been queued in the current stream."""
        if self._stream is not None:
            self._free.record(torch.cuda.current_stream(self._device))
            self._released = True
