"""All drivers of this machine together, numbered as one."""

from __future__ import annotations

from collections.abc import Sequence

from drumline.hardware.device import Device, in_pci_order
from drumline.hardware.providers.amd import AmdProvider
from drumline.hardware.providers.interface import Findings, Provider
from drumline.hardware.providers.nvidia import NvidiaProvider
from drumline.hardware.providers.simulated import SimulatedProvider


def choose_provider(simulate: str | None = None) -> Provider:
    """The drivers of this machine, or simulated devices where `simulate` says which.

    Raises:
        DeviceError: If `simulate` cannot be read.
    """
    return SimulatedProvider(simulate) if simulate else SystemProvider()


class SystemProvider:
    """NVIDIA's and AMD's devices of one machine, in one PCI-bus order."""

    def __init__(self, providers: Sequence[Provider] | None = None) -> None:
        own: Sequence[Provider] = (NvidiaProvider(), AmdProvider())
        self._providers = own if providers is None else providers

    def probe(self) -> Findings:
        """Read everything from each driver. See `Provider`."""
        found = [provider.probe() for provider in self._providers]
        devices = in_pci_order(device for one in found for device in one.devices)
        told = [one for one in found if one.installed or not devices]
        return Findings(
            devices,
            tuple(link for one in found for link in one.links),
            tuple(problem for one in told for problem in one.problems),
            next((one.driver_version for one in found if one.driver_version), None),
            next((one.cuda_driver_version for one in found if one.cuda_driver_version), None),
            any(one.installed for one in found),
        )

    def sample(self) -> tuple[Device, ...]:
        """Read what changes from each driver. See `Provider`."""
        return in_pci_order(device for provider in self._providers for device in provider.sample())

    def close(self) -> None:
        """Let go of all drivers."""
        for provider in self._providers:
            provider.close()
