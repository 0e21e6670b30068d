"""Time on the device's own clock, and what of a step is a rank's own work."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch


class DeviceClock:
    """Moments on a device's own time: events of its stream on a GPU, the host's clock else.

    Taking one never waits. Reading the time between two does not either, once the device has been
    synchronised, as every step does when it agrees on its gradient.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"

    def now(self) -> Any:
        """A moment, for `between`."""
        if not self._on_gpu:
            return time.perf_counter()
        moment = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        moment.record()
        return moment

    def between(self, first: Any, later: Any) -> float:
        """Seconds from one moment to a later one; of a device that has reached both."""
        if self._on_gpu:
            return float(first.elapsed_time(later)) / 1e3
        return float(later - first)


@dataclass(frozen=True)
class Lap:
    """One step's own work: seconds, and of them those in which this thread had a processor."""

    seconds: float
    processor_s: float


class Stopwatch:
    """Times the part of a step in which a rank waits for nobody.

    Only a step that is `armed` is timed, and must then do its own work apart from the sum over
    ranks: what overlaps with others' work cannot be told from waiting for them.
    """

    def __init__(self, device: torch.device) -> None:
        self.armed = False
        self._clock = DeviceClock(device)
        self._began: tuple[Any, float] | None = None
        self._ended: tuple[Any, float] | None = None

    def start(self) -> None:
        """The step's own work begins."""
        self._began, self._ended = self._moment(), None

    def stop(self) -> None:
        """It is done; what follows is the work of all ranks together."""
        self._ended = self._moment()

    def cancel(self) -> None:
        """This step says nothing: it was begun again, for example."""
        self._began = self._ended = None

    def lap(self) -> Lap | None:
        """The last armed step's own work, once; None if there was none."""
        began, ended = self._began, self._ended
        self.cancel()
        if began is None or ended is None:
            return None
        return Lap(self._clock.between(began[0], ended[0]), ended[1] - began[1])

    def _moment(self) -> tuple[Any, float]:
        return self._clock.now(), time.thread_time()
