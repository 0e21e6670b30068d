"""What is looked at, and at which value it is wrong: pure functions from what is known to readings.

A value that is not reported gives no reading: not knowing is neither good nor bad.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from drumline.hardware import Device


@dataclass(frozen=True)
class Rule:
    """A bound with hysteresis: wrong at `raise_at`, right again at `clear_at`, which lies on the
    better side of it.

    Args:
        name: What incidents are filed under.
        raise_at: From this value on (upwards, or downwards if `below`) it is wrong.
        clear_at: From this value on (the other way) it is right again.
        hold_s: How long it must be wrong, or right, without a break before somebody is told.
        below: Whether small values are the wrong ones.
        ends_when_gone: Whether a subject that is looked at no longer is right again.
        text: The message, with {subject} and {value}.
    """

    name: str
    raise_at: float
    clear_at: float
    hold_s: float
    text: str
    below: bool = False
    ends_when_gone: bool = False

    def is_wrong(self, value: float) -> bool:
        """Whether the value is bad enough to tell."""
        return value <= self.raise_at if self.below else value >= self.raise_at

    def is_right(self, value: float) -> bool:
        """Whether the value is good enough to say that it is over."""
        return value >= self.clear_at if self.below else value <= self.clear_at


TEMPERATURE = Rule("temperature", 90, 85, 30, "{subject} is at {value:.0f} °C.")
ECC = Rule("ecc", 1, 0, 0, "{subject} reports {value:.0f} memory errors that were not corrected.")
DEVICE_LOST = Rule("device_lost", 1, 0, 10, "{subject} is lost: it cannot be reached any more.")
HOST_SILENT = Rule("host_silent", 60, 30, 30, "{subject} has not been heard of for {value:.0f} s.")
TRAINING_STALLED = Rule(
    "training_stalled", 900, 60, 30, "{subject} has made no step for {value:.0f} s.",
    ends_when_gone=True,
)  # fmt: skip
DISK = Rule("disk", 5, 7, 30, "{subject} has {value:.1f}% of its space left.", below=True)
RULES = (TEMPERATURE, ECC, DEVICE_LOST, HOST_SILENT, TRAINING_STALLED, DISK)


@dataclass(frozen=True)
class Reading:
    """One value by one rule. `key` tells subjects apart, `subject` is what people read."""

    rule: Rule
    key: str
    subject: str
    value: float


@dataclass(frozen=True)
class TrainingProgress:
    """A training that runs, and when it last made a step (milliseconds since 1970)."""

    id: str
    name: str
    last_step_ms: int


def of_devices(host: str, devices: Iterable[Device]) -> Iterator[Reading]:
    """Temperature, uncorrected memory errors and loss of a host's devices."""
    for device in devices:
        subject = f"GPU {device.index} ({device.name or device.uuid}) of {host}"
        if device.temperature_c is not None:
            yield Reading(TEMPERATURE, device.uuid, subject, device.temperature_c)
        if device.ecc_uncorrected is not None:
            yield Reading(ECC, device.uuid, subject, device.ecc_uncorrected)
        yield Reading(DEVICE_LOST, device.uuid, subject, float(device.lost))


def of_host(host_id: str, name: str, last_seen_ms: int, now_ms: int) -> Reading:
    """For how long a host's agent has been silent."""
    return Reading(HOST_SILENT, host_id, f"Host {name}", (now_ms - last_seen_ms) / 1000)


def of_trainings(running: Iterable[TrainingProgress], now_ms: int) -> Iterator[Reading]:
    """For how long each running training has made no step."""
    for training in running:
        silent_s = (now_ms - training.last_step_ms) / 1000
        subject = f"Training {training.name} ({training.id})"
        yield Reading(TRAINING_STALLED, training.id, subject, silent_s)


def of_disk(host: str, folder: Path) -> Iterator[Reading]:
    """How much of the file system under a folder is free; nothing where it cannot be read."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return
    if usage.total:
        free_percent = 100 * usage.free / usage.total
        yield Reading(DISK, f"{host}:{folder}", f"The disk of {folder} on {host}", free_percent)
