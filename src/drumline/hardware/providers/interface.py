"""What every source of devices offers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from drumline.hardware.device import Device
from drumline.hardware.link import Link


@dataclass(frozen=True)
class Findings:
    """What one provider found. `installed` is False where its driver is not on the machine at all,
    which is a problem only if no other provider finds a device.
    """

    devices: tuple[Device, ...] = ()
    links: tuple[Link, ...] = ()
    problems: tuple[str, ...] = ()
    driver_version: str | None = None
    cuda_driver_version: str | None = None
    installed: bool = True


class Provider(Protocol):
    """A source of devices. No method raises for what a device does or does not report."""

    def probe(self) -> Findings:
        """Read everything. A device seen by an earlier call and now gone is reported as lost."""
        ...

    def sample(self) -> tuple[Device, ...]:
        """Read only what changes (memory, load, temperature, power, clocks, ECC, processes) of
        the devices of the last probe; the cheap call for monitoring. A device that has
        disappeared is reported as lost. Probes first where that was not done.
        """
        ...

    def close(self) -> None:
        """Let go of the driver. Closing twice does nothing."""
        ...
