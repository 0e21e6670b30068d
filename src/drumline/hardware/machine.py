"""The machine: one host, its devices and the links between them, as they were at one moment."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from drumline.hardware.cpu import Host, probe_host
from drumline.hardware.device import Device, GpuProcess
from drumline.hardware.link import Link
from drumline.hardware.providers import Provider, choose_provider
from drumline.hardware.selection import find_device

__all__ = ["Device", "GpuProcess", "Host", "Link", "Machine"]


@dataclass(frozen=True)
class Machine:
    """One host with its accelerators in PCI-bus order. A CPU-only machine has no devices.

    `problems` say in plain words why devices that may be expected are not there.
    """

    host: Host
    devices: tuple[Device, ...] = ()
    links: tuple[Link, ...] = ()
    problems: tuple[str, ...] = ()

    @classmethod
    def probe(cls, provider: Provider | None = None, *, simulate: str | None = None) -> Machine:
        """Read everything now. Never raises for what a device does or does not report.

        Args:
            provider: Where the devices come from; by default the drivers of this machine. The
                same provider on a second call reports a device that has disappeared as lost.
            simulate: Simulated devices in place of real ones, for example "8xH100".

        Raises:
            DeviceError: If `simulate` cannot be read.
        """
        source = provider or choose_provider(simulate)
        try:
            found = source.probe()
        finally:
            if provider is None:
                source.close()
        host = probe_host(
            driver_version=found.driver_version, cuda_driver_version=found.cuda_driver_version
        )
        return cls(host, found.devices, found.links, found.problems)

    @property
    def gpus(self) -> tuple[Device, ...]:
        """All accelerators, those lost among them; empty on a CPU-only machine."""
        return self.devices

    @property
    def usable(self) -> tuple[Device, ...]:
        """What a process can be placed on: devices not lost, and in the place of a device that is
        split by MIG its instances.
        """
        return tuple(
            unit
            for device in self.devices
            for unit in (device.mig_instances if device.mig_enabled else (device,))
            if not unit.lost
        )

    def device(self, reference: str) -> Device:
        """The one device, or MIG instance, of an index, a UUID or an unambiguous UUID prefix.

        Raises:
            DeviceError: If there is none, or more than one.
        """
        return find_device(reference, self)

    def link(self, a: str, b: str) -> Link | None:
        """The link of two devices, by UUID in either order; None where none is known."""
        return next((link for link in self.links if {link.a, link.b} == {a, b}), None)

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain data, ready for JSON."""
        return asdict(self)
