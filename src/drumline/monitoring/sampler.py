"""Reads the sensors in time, on threads of its own, whatever the driver does.

One thread keeps the beat, another asks the driver. A call into the driver can hang for seconds;
then ticks are skipped and counted, a sample without readings says so, and nobody waits: drivers are
called through ctypes, which lets go of Python's lock meanwhile. What becomes of a sample is left to
the sink.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from queue import SimpleQueue

from drumline.database import now_ms
from drumline.hardware import Device, Machine, Provider
from drumline.hardware.cpu import probe_host
from drumline.hardware.device import CHANGING_FIELDS

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sample:
    """One machine at one tick. `skipped` counts the ticks so far that had no reading of their own.

    Where the driver hangs, `answered` is False, no device reports anything, and `machine.problems`
    and each device's `problem` say for how long.
    """

    time_ms: int
    machine: Machine
    skipped: int = 0
    answered: bool = True


class Sampler:
    """Reads a provider every `every_s` and gives each sample to `sink`.

    Ticks lie on whole multiples of the period on the wall clock, so that hosts agree. The whole
    machine is read at first, every `look_again_s`, and when a device changes for the worse or the
    better; while something is wrong, the driver is opened anew every `retry_s`, so that devices
    come back by themselves.

    Args:
        probe: Where the devices come from. Only the sampler's thread uses it.
        sink: Gets every sample, on one of the sampler's threads, one at a time. While it is busy
            ticks are skipped.
        every_s: The period.
        look_again_s: How often everything is read, with devices that are new.
        retry_s: How often, while there is a problem.
        patience_s: A driver that has not answered for so long is told of.
        clock: The wall clock in milliseconds.
        monotonic: A clock in seconds that never jumps.
    """

    def __init__(
        self,
        probe: Provider,
        sink: Callable[[Sample], object],
        every_s: float = 1.0,
        *,
        look_again_s: float = 60.0,
        retry_s: float = 30.0,
        patience_s: float = 3.0,
        clock: Callable[[], int] = now_ms,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._every_ms = max(1, round(every_s * 1000))
        self._sink = sink
        self._patience_s = patience_s
        self._clock = clock
        self._monotonic = monotonic
        self._reader = _Reader(probe, look_again_s, retry_s, monotonic)
        self._asked: SimpleQueue[int | None] = SimpleQueue()
        self._delivering = threading.Lock()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._idle = threading.Event()
        self._idle.set()
        self._last_tick_s: float | None = None
        self.skipped = 0
        """Ticks without a reading of their own."""

    def start(self) -> None:
        """Begin with the next tick."""
        for name, target in (("beat", self._beat), ("driver", self._read_when_asked)):
            thread = threading.Thread(target=target, name=f"drumline-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """End. A driver that hangs is not waited for longer than `timeout_s`."""
        self._stop.set()
        self._asked.put(None)
        for thread in self._threads:
            thread.join(timeout_s)

    def tick(self) -> None:
        """What is done at each tick: have the driver asked, or skip. Called by `start`'s thread."""
        now_s = self._monotonic()
        if self._last_tick_s is not None:
            passed = round((now_s - self._last_tick_s) * 1000 / self._every_ms)
            self.skipped += max(0, passed - 1)
        self._last_tick_s = now_s
        if self._idle.is_set():
            self._idle.clear()
            self._asked.put(self._nearest_tick())
            return
        self.skipped += 1
        waited_s = self._reader.waited_s()
        if waited_s >= self._patience_s:
            machine = without_readings(
                self._reader.machine, f"The driver has not answered for {waited_s:.0f} s."
            )
            self._deliver(Sample(self._nearest_tick(), machine, self.skipped, answered=False))

    def _beat(self) -> None:
        while not self._stop.wait(self._until_next_tick_s()):
            self.tick()

    def _read_when_asked(self) -> None:
        while (tick_ms := self._asked.get()) is not None and not self._stop.is_set():
            began_s = self._monotonic()
            machine = self._reader.read()
            if (self._monotonic() - began_s) * 1000 > self._every_ms:
                tick_ms = self._nearest_tick()  # the driver hung; what it says is of now
            self._deliver(Sample(tick_ms, machine, self.skipped))
            self._idle.set()
        self._reader.close()

    def _deliver(self, sample: Sample) -> None:
        with self._delivering:
            try:
                self._sink(sample)
            except Exception:
                logger.exception("A sample was lost.")

    def _nearest_tick(self) -> int:
        return (self._clock() + self._every_ms // 2) // self._every_ms * self._every_ms

    def _until_next_tick_s(self) -> float:
        wait_ms = self._nearest_tick() + self._every_ms - self._clock()
        return max(0, wait_ms) / 1000


class _Reader:
    """Knows when to read everything and when only the sensors."""

    def __init__(
        self,
        provider: Provider,
        look_again_s: float,
        retry_s: float,
        monotonic: Callable[[], float],
    ) -> None:
        self._provider = provider
        self._look_again_s = look_again_s
        self._retry_s = retry_s
        self._monotonic = monotonic
        self._looked_s: float | None = None
        self._since_s: float | None = None
        self.machine: Machine | None = None

    def waited_s(self) -> float:
        """For how long the driver has been asked by now; 0 where it is not being asked."""
        since_s = self._since_s
        return 0.0 if since_s is None else self._monotonic() - since_s

    def read(self) -> Machine:
        """The machine now. Never raises for what the provider does."""
        self._since_s = self._monotonic()
        try:
            self.machine = self._read()
        except Exception as error:
            self._looked_s = self._monotonic()
            told = f"The devices could not be read: {error}"
            if self.machine is None or self.machine.problems != (told,):
                logger.exception("The devices could not be read.")
            self.machine = without_readings(self.machine, told)
        finally:
            self._since_s = None
        return self.machine

    def close(self) -> None:
        self._provider.close()

    def _read(self) -> Machine:
        if self.machine is None or self._looked_s is None:
            return self._look()
        wrong = _is_wrong(self.machine)
        period_s = self._retry_s if wrong else self._look_again_s
        if self._monotonic() - self._looked_s >= period_s:
            if wrong:
                self._provider.close()  # a driver that was reloaded must be opened anew
            return self._look()
        devices = self._provider.sample()
        if _health(devices) != _health(self.machine.devices):
            return self._look()
        return replace(self.machine, devices=devices)

    def _look(self) -> Machine:
        self._looked_s = self._monotonic()
        return Machine.probe(self._provider)


def without_readings(machine: Machine | None, problem: str) -> Machine:
    """A machine whose devices are known but report nothing, and why."""
    if machine is None:
        return Machine(probe_host(), problems=(problem,))
    devices = tuple(_silent(device, problem) for device in machine.devices)
    return replace(machine, devices=devices, problems=(problem,))


def _silent(device: Device, problem: str) -> Device:
    if device.lost:
        return device
    unknown = dict.fromkeys(CHANGING_FIELDS)
    instances = tuple(_silent(instance, problem) for instance in device.mig_instances)
    return replace(device, **unknown, mig_instances=instances, problem=problem)  # type: ignore[arg-type]


def _is_wrong(machine: Machine) -> bool:
    simulated = any(device.simulated for device in machine.devices)
    lost = any(device.lost for device in machine.devices)
    return lost or (bool(machine.problems) and not simulated)


def _health(devices: Iterable[Device]) -> list[tuple[str, bool, str | None]]:
    units = (unit for device in devices for unit in (device, *device.mig_instances))
    return [(unit.uuid, unit.lost, unit.problem) for unit in units]
